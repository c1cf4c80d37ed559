"""The chat template as token ids: prompts and the tokens between two messages of a policy.

Token in, token out: the policy's tokens are never decoded and encoded again. A turn consists of the
policy's own tokens. Only the tokens between two of its messages come from the chat template: the
end of its turn, the observation and the start of its next turn.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, lru_cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from jinja2 import TemplateError

from configs.conversation_start import ConversationStart
from configs.experiment import Compaction, Thinking
from environments.tools import ANY_ACTION, Tool
from tasks.agents.action_format import (
    ActionFormat,
    MalformedActionError,
    format_message,
    read_action,
    with_format,
)
from tasks.agents.tool_calls import (
    PROBE,
    PROBE_CALL,
    Call,
    ResponseTemplate,
    action_of_calls,
    find_response_template,
    parse_message,
    to_call,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]

CONSENT = "I understand. I will follow these instructions."
"""The assistant's answer to the instruction in a conversation that starts as AgentGym's do."""

# Placeholders for texts whose position in a rendered conversation is looked up. No template trims
# or parses them.
_INSTRUCTION, _FIRST, _SECOND, _THIRD = "QzInstructionzQ", "QzFirstzQ", "QzSecondzQ", "QzThirdzQ"
_REPLY, _LATER_REPLY = "QzReplyzQ", "QzLaterReplyzQ"
_TOOL, _ARGUMENT = "QzToolzQ", "QzArgumentzQ"

CLOSED_THOUGHT = "<think>\n\n</think>\n\n"

CALL_ID = "call00000"
"""Id of every call. Mistral's templates require nine letters or digits."""

CACHED_REPLIES = 4096
CACHED_PROMPTS = 256


ChatTemplateProblem = Literal[
    "missing",
    "no_end_token",
    "channels",
    "unused_variable",
    "rejected_roles",
    "changed_opening",
    "instruction",
    "changed_turn_start",
    "changed_turn_gap",
    "missing_message",
    "shared_token",
    "no_tools",
    "call_end",
    "unknown_calls",
]


class ChatTemplateError(ValueError):
    """The tokenizer's chat template cannot render a dialogue of several turns.

    Attributes:
        code: The kind of the problem.
    """

    def __init__(self, text: str, code: ChatTemplateProblem) -> None:
        """Raise with the problem and its fix."""
        super().__init__(text)
        self.code = code


def opening_messages(start: ConversationStart, instruction: str | None) -> list[Message] | None:
    """Return the messages before the first observation.

    None if the instruction goes where the chat template can carry it.

    Args:
        instruction: Instruction including the message form. None for no instruction.
    """
    if not isinstance(start, str):
        return [{"role": message.role, "content": message.content} for message in start]
    if start == "system":
        return None
    if instruction:
        return [{"role": "user", "content": instruction}, {"role": "assistant", "content": CONSENT}]
    return []


T = TypeVar("T")


def of_task(each: Sequence[T], task: int) -> T:
    """Return the item of a task's world, from one for each world of a mixture or one for all."""
    return each[task % len(each)]


class ChatFormat:
    """Converts observations to token ids with a chat template, and a policy's tokens to an action.

    Attributes:
        action_format: Format in which a message gives its action.
        stop_tokens: Ids that end a message: first the template's end of turn, if it has one, then
            its end of a call and the ends of text of tokenizer and generation config.
        system_role: Whether the instruction is a system message. Otherwise it precedes the first
            observation.
        rewrites: Whether `conversation` writes earlier turns again in every turn.
        compacts: Whether the oldest observations are dropped from a long context.
        thought_opened: Whether the template ends its prompts inside a thought, after <think>.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        action_format: ActionFormat,
        instruction: str | None,
        conversation_start: ConversationStart = "system",
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Tool] = (ANY_ACTION,),
        thinking: Thinking = "keep",
        compaction: Compaction = "none",
    ) -> None:
        """Derive the form of a turn from the chat template and check it.

        Args:
            tokenizer: Any tokenizer with a chat template, loaded from the model's folder or name.
            action_format: "react" is free thought followed by "Action: ...". With "bare" the
                message is the action. With "tools" it is a call of a tool, in the form of the chat
                template.
            instruction: Instruction before the first observation. The message form is appended,
                except for "bare". None omits both.
            conversation_start: Role of the instruction, see `configs.conversation_start`.
            chat_template_kwargs: Variables of the chat template, e.g. {"enable_thinking": False}.
            tools: The world's tools. Only used for "tools".
            thinking: What becomes of thoughts, see `configs.experiment.TurnFormat`.
            compaction: What becomes of earlier observations, see there.

        Raises:
            ChatTemplateError: There is no template, it changes earlier turns as the conversation
                grows, it writes texts in channels that cannot be read, it does not use one of the
                variables, or it does not support tools.
        """
        self._tokenizer = tokenizer
        self.action_format = action_format
        self._instruction = with_format(instruction, action_format)
        self._opening_messages = opening_messages(conversation_start, self._instruction)
        if self._opening_messages is not None:
            self._instruction = None
        if not tokenizer.chat_template:
            raise ChatTemplateError(
                f"policy.model: the tokenizer {tokenizer.name_or_path!r} has no chat template. "
                "Choose a chat model or set tokenizer.chat_template.",
                code="missing",
            )
        template = str(tokenizer.chat_template)
        if unused := [name for name in chat_template_kwargs or {} if name not in template]:
            raise ChatTemplateError(
                f"policy.chat_template_kwargs: the chat template of {tokenizer.name_or_path!r} "
                f"does not use the variable {unused[0]!r}. Correct the name or remove it.",
                code="unused_variable",
            )
        # A frozen clock: with the current date in the prompt the same seeds would give another run
        # each day.
        self._render_options: dict[str, Any] = {
            "strftime_now": partial(datetime.strftime, datetime(2025, 1, 1)),
            **(chat_template_kwargs or {}),
        }
        self.rewrites, self.compacts = thinking == "strip", compaction == "drop"
        self._closing = ""
        if thinking == "stop" and "<think>" in template:
            if "enable_thinking" in template:
                self._render_options["enable_thinking"] = False
            else:
                self._closing = CLOSED_THOUGHT
        self._tools = tuple(tools)
        self._schemas = [tool.schema for tool in tools] if action_format == "tools" else []
        if self._schemas:
            self._render_options["tools"] = self._schemas
        self._special_marks = {
            number: str(token)
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special and str(token) in ("<think>", "</think>")
        }
        self._special_texts = [
            str(token) for token in tokenizer.added_tokens_decoder.values() if token.special
        ]
        self._response_template: ResponseTemplate = {}
        self.system_role = False
        self._anchor = self._encode(_REPLY)
        # The members of a group see many equal texts. Rendering and encoding take longer than a
        # turn of a small engine.
        self._cached_reply = lru_cache(maxsize=CACHED_REPLIES)(self._whole_reply)
        self._cached_prompt = lru_cache(maxsize=CACHED_PROMPTS)(self._whole_prompt)
        tail = self._derive()
        self.thought_opened = (
            tail.rpartition("<think>")[1] != "" and "</think>" not in tail.rpartition("<think>")[2]
        )
        tokens = self._encode_after_reply(tail)
        self._end_of_turn = self._find_end_of_turn(tokens)
        self._own_end = self._end_of_turn
        self._end_of_call: int | None = None
        self._call_end_text = ""
        self._prefix = self._render(self._opening(self._instruction, _FIRST))
        self._channel = self._derive_channel()
        if self._schemas:
            self._derive_calls()
        ends = [self._own_end, self._end_of_call, tokenizer.eos_token_id]
        ends += _ends_of_text(tokenizer.name_or_path)
        self.stop_tokens: tuple[int, ...] = tuple(
            dict.fromkeys(token for token in ends if token is not None)
        )
        if not self.stop_tokens:
            raise ChatTemplateError(
                f"policy.model: the tokenizer {tokenizer.name_or_path!r} and its chat template "
                "have no token that ends a message. Set tokenizer.eos_token.",
                code="no_end_token",
            )

    def prompt(self, observation: str) -> list[int]:
        """Return the token ids up to the start of the policy's first message. Shape (P,)."""
        return list(self._cached_prompt(observation))

    def _whole_prompt(self, observation: str) -> tuple[int, ...]:
        if not self._is_inserted(observation):
            return tuple(self._encode(self._render(self._opening(self._instruction, observation))))
        before, after = self._render(self._opening(self._instruction, _FIRST)).split(_FIRST)
        return (*self._encode(before), *self._encode_plain(observation), *self._encode(after))

    def reply(self, observation: str, last_tokens: Sequence[int]) -> list[int]:
        """Return the token ids from the end of the policy's message to the start of its next one.

        Args:
            observation: The observation that the policy sees next.
            last_tokens: The message just written. If it lacks the template's end of turn (the token
                budget cut it, or another stop token ended it), the result begins with that token.

        Returns:
            Token ids, shape (R,).
        """
        call = self._last_call(last_tokens)
        tokens = self._cached_reply(observation, call)
        end = self._end_of_turn if call is None else self._end_of_call
        if end is not None and last_tokens and last_tokens[-1] in (end, self._own_end):
            return list(tokens[tokens.index(end) + 1 :])
        return list(tokens)

    def _whole_reply(self, observation: str, call: str | None) -> tuple[int, ...]:
        """Return the tokens that follow a message without its end of turn.

        Args:
            call: Name of the tool that the message calls. None: it calls none.
        """
        if self._has_special_text(observation):
            before, after = self._tail(_SECOND, call).split(_SECOND)
            whole = self._tail(observation, call)
            shown = whole[len(before) : len(whole) - len(after)]
            return (
                *self._encode_after_reply(before),
                *self._encode_plain(shown),
                *self._encode(after),
            )
        return tuple(self._encode_after_reply(self._tail(observation, call)))

    def demonstration(self, action: str, thought: str) -> str:
        """Return the text of the message that performs an action, after a thought if it has one.

        Raises:
            ToolCallError: No tool performs the action.
        """
        if not self._schemas:
            return format_message(action, thought, self.action_format)
        call = to_call(action, self._tools)
        return self.call_text(call.name, call.arguments, thought)

    def call_text(self, name: str, arguments: Mapping[str, Any], content: str = "") -> str:
        """Return the text of a message that calls a tool, without its end.

        If the prompt opened a thought, the text closes it first.
        """
        opening = self._opening(self._instruction, _FIRST)
        text = self._after_prompt(
            self._render([*opening, _call(name, arguments, content)], prompt=False)
        ).rstrip()
        if (end := self._special_at_end(text)) and self._id(end) == self._end_of_call:
            text = text.removesuffix(end)
        return f"</think>\n\n{text}" if self.thought_opened and "</think>" not in text else text

    def _after_prompt(self, whole: str) -> str:
        """Return what a conversation contains after its prompt.

        A thought that the prompt opened or closed is not repeated.
        """
        before, _, opened = self._prefix.rpartition("<think>")
        if whole.startswith(self._prefix) or not before:
            return whole.removeprefix(self._prefix)
        text = whole.removeprefix(before)
        if "</think>" in opened:
            return re.sub(r"^<think>\s*</think>\s*", "", text)
        return text.removeprefix("<think>")

    def conversation(self, observation: str, exchanges: Sequence[tuple[str, str]]) -> list[int]:
        """Return the token ids up to the start of the next message, all turns written again.

        Args:
            observation: The first observation.
            exchanges: Text of each message as returned by `text`, and the observation after it.
        """
        plain: dict[str, str] = {}

        def shown(text: str) -> str:
            if not self._is_inserted(text):
                return text
            mark = f"QzText{len(plain)}zQ"
            plain[mark] = text
            return mark

        messages = self._opening(self._instruction, shown(observation))
        for written, answer in exchanges:
            message = self._spoken(written)
            called = [call["function"]["name"] for call in message.get("tool_calls", ())]
            if called:
                result = {"role": "tool", "name": called[-1], "tool_call_id": CALL_ID}
            else:
                result = {"role": "user"}
            messages += [message, {**result, "content": shown(answer)}]
        tokens: list[int] = []
        for piece in re.split(f"({'|'.join(plain)})" if plain else "$^", self._render(messages)):
            tokens += self._encode_plain(plain[piece]) if piece in plain else self._encode(piece)
        return tokens

    def _spoken(self, text: str) -> Message:
        """Return the text of a message in the parts that the chat template takes.

        They have no special tokens, so a message cannot forge the end of a turn. Only the marks of
        a thought stay.
        """
        if not self._response_template:
            text = self._without_special_texts(text, kept=self._special_marks.values())
        else:
            with suppress(MalformedActionError):
                parsed, calls = self._parse(text)
                parsed = self._without_special_texts(parsed)
                parts = {name: part for name, part in parsed.items() if isinstance(part, str)}
                if calls:
                    identified = [{**call, "id": CALL_ID} for call in parsed["tool_calls"]]
                    return {"content": "", **parts, "role": "assistant", "tool_calls": identified}
                if self._channel and parts.keys() != {"role"}:
                    return {"content": "", **parts}
            # some templates refuse marks of channels in a text
            text = self._without_special_texts(text)
        opened = self.thought_opened and "</think>" in text and "<think>" not in text
        return {"role": "assistant", "content": f"<think>\n{text}" if opened else text}

    def message(self, text: str) -> list[int]:
        """Return the tokens of a demonstrated message, its end included. Shape (M,).

        If the prompt opened a thought, the message closes it first, because a demonstration has
        none. If the template writes texts in a channel, a text without special tokens gets its
        header.
        """
        if self.thought_opened and "</think>" not in text:
            text = f"\n</think>\n\n{text}"
        if not self._has_special_text(text):
            text = self._channel + text
        tokens = self._encode(text)
        return [
            *tokens,
            self.stop_tokens[0]
            if self._end_of_call is None or self._last_call(tokens) is None
            else self._end_of_call,
        ]

    def text(self, tokens: Sequence[int]) -> str:
        """Decode the policy's tokens without special tokens, but keep the marks of a thought.

        With tools or channels all special tokens stay, except for a last one that ends the message.
        """
        if self._response_template:
            if tokens and tokens[-1] in self.stop_tokens:
                tokens = tokens[:-1]
            return str(
                self._tokenizer.decode(
                    list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
                )
            )
        pieces: list[str] = []
        run: list[int] = []
        for token in tokens:
            if (mark := self._special_marks.get(token)) is None:
                run.append(token)
            else:
                pieces += [self._decode(run), mark]
                run = []
        return "".join([*pieces, self._decode(run)])

    def _decode(self, tokens: list[int]) -> str:
        decoded = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(decoded, str)
        return decoded

    def action_in(self, text: str) -> str:
        """Return the action in the text of the policy's message.

        Raises:
            MalformedActionError: The message is malformed.
        """
        if self._schemas:
            return action_of_calls(self.calls(text), self._tools)
        if self._channel and self._has_special_text(text):
            content = self._parse(text)[0].get("content")
            if content is None:
                raise MalformedActionError(
                    "Nothing was done: the message ended before its text to the user. Think less "
                    "and write the text.",
                    code="open_thought",
                )
            text = content
        return read_action(text, self.action_format, self.thought_opened)

    def calls(self, text: str) -> list[Call]:
        """Return the tool calls in the text of the policy's message.

        Raises:
            MalformedActionError: A call cannot be read.
        """
        return self._parse(text)[1]

    def _parse(self, text: str) -> tuple[Message, list[Call]]:
        parsed, calls = parse_message(
            self._tokenizer,
            self._response_template,
            text + self._call_end_text,
            self._prefix,
            self._schemas,
        )
        if content := parsed.get("content"):  # of GLM's models it contains the end of the call
            parsed["content"] = content.removesuffix(self._call_end_text)
        return (parsed, calls) if self._schemas else ({**parsed, "tool_calls": []}, [])

    def _last_call(self, tokens: Sequence[int]) -> str | None:
        """Return the name of the tool that a message calls last, None if it calls none."""
        if not self._response_template:
            return None
        try:
            calls = self.calls(self.text(tokens))
        except MalformedActionError:
            return None
        return calls[-1].name if calls else None

    def _opening(self, instruction: str | None, observation: str) -> list[Message]:
        if self._opening_messages is not None:
            return [*self._opening_messages, {"role": "user", "content": observation}]
        if instruction is None:
            return [{"role": "user", "content": observation}]
        if self.system_role:
            return [
                {"role": "system", "content": instruction},
                {"role": "user", "content": observation},
            ]
        return [{"role": "user", "content": f"{instruction}\n\n{observation}"}]

    def _render(self, messages: list[Message], prompt: bool = True, **options: Any) -> str:
        options = {**self._render_options, **options}
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=prompt, **options
        )
        assert isinstance(text, str)
        if not prompt or not self._closing:
            return text
        opening = re.search(r"<think>\s*$", text)
        return (text[: opening.start()] if opening else text) + self._closing

    def _tail(self, observation: str, call: str | None = None) -> str:
        """Return the template's text after the policy's message when `observation` answers it.

        Args:
            call: Name of the tool that the message calls. The observation is then its result.
        """
        messages = [
            *self._opening(self._instruction, _FIRST),
            *_exchange(_REPLY, observation, call),
        ]
        text = self._render(messages, **self._tools_of(call)).partition(_REPLY)[2]
        return text if call is None else text[self._call_start :]

    def _derive_calls(self) -> None:
        """Derive how messages with and without a call end, and how calls are read.

        Raises:
            ChatTemplateError: The template does not support tools, or no response template reads
                its calls.
        """
        opening = self._opening(self._instruction, _FIRST)
        if _TOOL not in self._render(opening, tools=[Tool(_TOOL, _TOOL).schema]):
            raise self._fault("does not write the tools into the prompt", code="no_tools")
        try:
            tail = self._checked_tail(_TOOL)
        except TypeError as error:
            raise self._fault(f"cannot write a tool call ({error})", code="no_tools") from error
        closing = self._alone(_call(_TOOL, {_ARGUMENT: _REPLY}))
        end = self._special_at_end(closing)
        closing = closing.removesuffix(end).rstrip()
        following = tail[len(closing) :].lstrip() if tail.startswith(closing) else ""
        end = end or next(
            (special for special in self._special_texts if following.startswith(special)), ""
        )
        if not end or not following.startswith(end):
            raise self._fault("does not end a tool call with a special token", code="call_end")
        self._call_start = tail.index(end, len(closing))
        self._end_of_call, self._call_end_text = self._id(end), end
        template = find_response_template(
            self._tokenizer,
            self.call_text(PROBE.name, PROBE_CALL) + end,
            self._prefix,
            _call(PROBE.name, PROBE_CALL),
        )
        if template is None:
            raise self._fault(
                "writes tool calls in a form that no response template of transformers or TRL "
                "reads",
                code="unknown_calls",
            )
        self._response_template = template

    def _derive_channel(self) -> str:
        """Derive how a text ends that ends the conversation, and how it is read.

        Returns:
            The header that the template writes before a text, e.g. of harmony's channel "final".
            Empty for most templates.

        Raises:
            ChatTemplateError: There is a header, but no response template reads the text.
        """
        text = {"role": "assistant", "content": _REPLY}
        messages = [*self._opening(self._instruction, _FIRST), text]
        before, _, end = self._render(messages, prompt=False).partition(_REPLY)
        channel = self._after_prompt(before) if _header(self._prefix, before) else ""
        # Harmony writes another end of a message when the conversation goes on.
        if (channel or self._schemas) and (own_end := self._special_at_end(end.rstrip())):
            self._own_end = self._id(own_end)
        if channel and not self._schemas:
            template = find_response_template(
                self._tokenizer, f"{channel}{_REPLY}{end}", self._prefix, text
            )
            if template is None:
                raise self._fault(
                    "writes texts in channels that no response template of transformers or TRL "
                    "reads",
                    code="channels",
                )
            self._response_template = template
        return channel

    def _tools_of(self, call: str | None) -> dict[str, Any]:
        """Return the options that render turns with calls of a tool, or without calls.

        Some templates move the tools to the last message of the user, so texts are rendered without
        tools.
        """
        return {} if call else {"tools": None}

    def _alone(self, message: Message) -> str:
        """Return the template's text after `_REPLY` in a message that ends the conversation."""
        return (
            self._render([*self._opening(self._instruction, _FIRST), message], prompt=False)
            .partition(_REPLY)[2]
            .rstrip()
        )

    def _id(self, special: str) -> int:
        return int(self._tokenizer.convert_tokens_to_ids(special))

    def _special_at_end(self, text: str) -> str:
        """Return the special token that a text ends with, or an empty text."""
        return max(
            (special for special in self._special_texts if text.endswith(special)),
            key=len,
            default="",
        )

    def _derive(self) -> str:
        """Set the place of the instruction and return the tail of a turn.

        Raises:
            ChatTemplateError: Neither place works.
        """
        if self._instruction is not None:
            self.system_role = True
            try:
                return self._checked_tail()
            except ChatTemplateError:
                self.system_role = False
        return self._checked_tail()

    def _checked_tail(self, call: str | None = None) -> str:
        """Return the tail of a turn after checking that it is the same in every turn.

        Args:
            call: Name of a tool that every message calls. None: they call none.

        Raises:
            ChatTemplateError: The tail changes as the conversation grows. The message names the
                cause.
        """
        marks = [_FIRST, _REPLY, _SECOND, _LATER_REPLY, _THIRD]
        opening = self._opening(None if self._instruction is None else _INSTRUCTION, _FIRST)
        conversation = [
            *opening,
            *_exchange(_REPLY, _SECOND, call),
            *_exchange(_LATER_REPLY, _THIRD, call),
        ]
        lengths = (len(opening), len(opening) + 2, len(opening) + 4)
        try:
            texts = (self._render(conversation[:n], **self._tools_of(call)) for n in lengths)
            one, two, three = (
                self._split(text, marks[: 2 * turn + 1]) for turn, text in enumerate(texts)
            )
        except TemplateError as error:
            raise self._fault(
                f"rejects alternating user and assistant messages ({error})", code="rejected_roles"
            ) from error
        if self._instruction is not None and one[0].count(_INSTRUCTION) != 1:
            raise self._fault(
                "does not write the instruction exactly once before the first observation",
                code="instruction",
            )
        if self.rewrites:
            return f"{two[2]}{_SECOND}{two[3]}"
        if not one[0] == two[0] == three[0]:
            raise self._fault(
                "changes the beginning of the conversation when later messages follow",
                code="changed_opening",
            )
        # The result of a call may end differently from the first observation.
        if not (two if call else one)[-1] == two[-1] == three[-1]:
            raise self._fault(
                "starts the policy's later turns differently from its first turn",
                code="changed_turn_start",
            )
        if _header(one[-1], two[1]) != _header(two[-1], three[3]):
            raise self._fault(
                "writes the policy's later messages differently from its first message",
                code="changed_turn_start",
            )
        if not two[2] == three[2] == three[4]:
            raise self._fault(
                "changes the text between two turns when later messages follow",
                code="changed_turn_gap",
            )
        return f"{two[2]}{_SECOND}{two[3]}"

    def _split(self, text: str, marks: list[str]) -> list[str]:
        """Return the pieces of `text` around the marks, one more than there are marks."""
        pieces = []
        for mark in marks:
            if text.count(mark) != 1:
                raise self._fault(
                    "does not write each message exactly once, in order", code="missing_message"
                )
            piece, _, text = text.partition(mark)
            pieces.append(piece)
        return [*pieces, text]

    def _fault(self, problem: str, code: ChatTemplateProblem) -> ChatTemplateError:
        return ChatTemplateError(
            f"policy.model: the chat template of {self._tokenizer.name_or_path!r} {problem}. "
            "Training needs a template that only appends tokens to a conversation. "
            "Choose another model or change the tokenizer's template.",
            code=code,
        )

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _encode_plain(self, text: str) -> list[int]:
        """Encode special tokens in the text as ordinary characters.

        An observation can then not forge the end of a turn.
        """
        return list(
            self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        )

    def _is_inserted(self, observation: str) -> bool:
        """Return whether an observation is encoded as ordinary characters and inserted afterwards.

        Its text has special tokens, or Qwen's templates take it for a tool's result. Without
        another message of the user, some of them then reject the conversation.
        """
        is_like_result = observation.lstrip().startswith("<tool_response>")
        return is_like_result or self._has_special_text(observation)

    def _has_special_text(self, text: str) -> bool:
        return any(special in text for special in self._special_texts)

    def _without_special_texts(self, part: Any, kept: Collection[str] = ()) -> Any:
        """Return a text, or lists and objects of texts, without special tokens other than `kept`.

        Texts that removals have joined to a special token are removed, too.
        """
        if isinstance(part, list):
            return [self._without_special_texts(each, kept) for each in part]
        if isinstance(part, dict):
            return {
                self._without_special_texts(name, kept): self._without_special_texts(each, kept)
                for name, each in part.items()
            }
        if not isinstance(part, str):
            return part
        removed = [special for special in self._special_texts if special not in kept]
        while any(special in part for special in removed):
            for special in removed:
                part = part.replace(special, "")
        return part

    def _encode_after_reply(self, tail: str) -> list[int]:
        """Encode the text after a message in context.

        A tokenizer that marks the start of a text then adds no mark here.

        Raises:
            ChatTemplateError: The end of a message and the following text share a token.
        """
        tokens = self._encode(_REPLY + tail)
        if tokens[: len(self._anchor)] != self._anchor:
            raise self._fault(
                "merges the end of a message and the following text into one token",
                code="shared_token",
            )
        return tokens[len(self._anchor) :]

    def _find_end_of_turn(self, tail: list[int]) -> int | None:
        """Return the first special token of the tail, which ends the policy's turn.

        None if there is none, or if text other than whitespace precedes it.
        """
        special = {
            token for token, added in self._tokenizer.added_tokens_decoder.items() if added.special
        }
        for position, token in enumerate(tail):
            if token in special:
                return token if not self.text(tail[:position]).strip() else None
        return None


def chat_formats(
    tokenizer: PreTrainedTokenizerBase,
    action_format: ActionFormat,
    instruction: str | None,
    *,
    tool_lists: Sequence[Sequence[Tool]],
    **options: Any,
) -> list[ChatFormat]:
    """Return the chat format of each world of a mixture, in its order, or one for all.

    Args:
        tokenizer: As in `ChatFormat`.
        action_format: As in `ChatFormat`. Only with "tools" do the worlds have different formats.
        instruction: As in `ChatFormat`.
        tool_lists: As in `World`.
        options: Further arguments of `ChatFormat`.
    """
    return [
        ChatFormat(tokenizer, action_format, instruction, tools=tools, **options)
        for tools in (tool_lists if action_format == "tools" else tool_lists[:1])
    ]


@cache
def _ends_of_text(model: str) -> tuple[int, ...]:
    """Return the ids that end a text by a model's generation config. Empty: it has none."""
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(model).eos_token_id if model else None
    except OSError:
        return ()
    return (ends,) if isinstance(ends, int) else tuple(ends or ())


def _call(name: str, arguments: Mapping[str, Any], content: str = "") -> Message:
    """Return a message of the assistant that calls a tool."""
    call = {
        "type": "function",
        "id": CALL_ID,
        "function": {"name": name, "arguments": dict(arguments)},
    }
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _exchange(reply: str, observation: str, call: str | None) -> list[Message]:
    """Return a message of the assistant and its answer: a call and its result, or two texts."""
    if call is None:
        return [{"role": "assistant", "content": reply}, {"role": "user", "content": observation}]
    result = {"role": "tool", "name": call, "tool_call_id": CALL_ID, "content": observation}
    return [_call(call, {_ARGUMENT: reply}), result]


def _common(one: str, other: str) -> str:
    """Return the longest text that both texts begin with."""
    return "".join(
        a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    )


def _header(prompt: str, written: str) -> str:
    """Return what a template writes before a message and after its prompt, except for a thought."""
    return re.sub(r"</?think>|\s", "", written.removeprefix(_common(prompt, written)))
