"""The chat template as token ids: prompts and the tokens between two messages of a policy.

Token in, token out: the policy's tokens are never decoded and encoded again. A turn consists of the
policy's own tokens. Only the tokens between two of its messages come from the chat template: the
end of its turn, the observation and the start of its next turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

from jinja2 import TemplateError

from configs.conversation_start import ConversationStart
from tasks.agents.action_format import ActionFormat, read_action, with_format

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, str]

CONSENT = "I understand. I will follow these instructions."
"""The assistant's answer to the instruction in a conversation that starts as AgentGym's do."""

# Placeholders for texts whose position in a rendered conversation is looked up. No template trims
# or parses them.
_INSTRUCTION, _FIRST, _SECOND, _THIRD = "QzInstructionzQ", "QzFirstzQ", "QzSecondzQ", "QzThirdzQ"
_REPLY, _LATER_REPLY = "QzReplyzQ", "QzLaterReplyzQ"

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
        start: Start of the conversation.
        instruction: Instruction including the message form. None for no instruction.
    """
    if not isinstance(start, str):
        return [{"role": message.role, "content": message.content} for message in start]
    if start == "system":
        return None
    return [{"role": "user", "content": instruction}, {"role": "assistant", "content": CONSENT}] if instruction else []


class ChatFormat:
    """Converts observations to token ids with a chat template, and a policy's tokens to an action.

    Attributes:
        action_format: Format in which a message gives its action.
        stop_tokens: Ids that end a message: first the template's end of turn, if it has one, then
            the tokenizer's end of text.
        system_role: Whether the instruction is a system message. Otherwise it precedes the first
            observation.
        thought_opened: Whether the template ends its prompts inside a thought, after <think>.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        action_format: ActionFormat,
        instruction: str | None,
        extra_stop_tokens: Iterable[int] = (),
        conversation_start: ConversationStart = "system",
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Derive the form of a turn from the chat template and check it.

        Args:
            tokenizer: Any tokenizer with a chat template.
            action_format: "react" is free thought followed by "Action: ...". With "bare" the
                message is the action.
            instruction: Instruction before the first observation. For "react" the message form is
                appended. None omits both.
            conversation_start: Role of the instruction, see `configs.conversation_start`.
            extra_stop_tokens: More ids that end a message, e.g. those of the model's generation
                config.
            chat_template_kwargs: Variables of the chat template, e.g. {"enable_thinking": False}.

        Raises:
            ChatTemplateError: There is no template, it changes earlier turns as the conversation
                grows, it writes messages in channels (harmony), or it does not use one of the
                variables.
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
        self._check_template(str(tokenizer.chat_template), chat_template_kwargs or {})
        # A frozen clock: with the current date in the prompt the same seeds would give another run
        # each day.
        self._render_options: dict[str, Any] = {
            "strftime_now": partial(datetime.strftime, datetime(2025, 1, 1)),
            **(chat_template_kwargs or {}),
        }
        self._special_marks = {
            number: str(token)
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special and str(token) in ("<think>", "</think>")
        }
        self._special_texts = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        self.system_role = False
        self._anchor = self._encode(_REPLY)
        # The members of a group see many equal texts. Rendering and encoding take longer than a
        # turn of a small engine.
        self._cached_reply = lru_cache(maxsize=CACHED_REPLIES)(self._whole_reply)
        self._cached_prompt = lru_cache(maxsize=CACHED_PROMPTS)(self._whole_prompt)
        tail = self._derive()
        self.thought_opened = tail.rpartition("<think>")[1] != "" and "</think>" not in tail.rpartition("<think>")[2]
        tokens = self._encode_after_reply(tail)
        self._end_of_turn = self._find_end_of_turn(tokens)
        ends = [self._end_of_turn, tokenizer.eos_token_id, *extra_stop_tokens]
        self.stop_tokens: tuple[int, ...] = tuple(dict.fromkeys(token for token in ends if token is not None))
        if not self.stop_tokens:
            raise ChatTemplateError(
                f"policy.model: the tokenizer {tokenizer.name_or_path!r} and its chat template have no token "
                "that ends a message. Set tokenizer.eos_token.",
                code="no_end_token",
            )

    def prompt(self, observation: str) -> list[int]:
        """Return the token ids up to the start of the policy's first message. Shape (P,)."""
        return list(self._cached_prompt(observation))

    def _whole_prompt(self, observation: str) -> tuple[int, ...]:
        if not self._has_special_text(observation):
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
        tokens = self._cached_reply(observation)
        if self._end_of_turn is not None and last_tokens and last_tokens[-1] == self._end_of_turn:
            return list(tokens[tokens.index(self._end_of_turn) + 1 :])
        return list(tokens)

    def _whole_reply(self, observation: str) -> tuple[int, ...]:
        """Return the tokens that follow a message without its end of turn."""
        if self._has_special_text(observation):
            before, after = self._tail(_SECOND).split(_SECOND)
            return (*self._encode_after_reply(before), *self._encode_plain(observation), *self._encode(after))
        return tuple(self._encode_after_reply(self._tail(observation)))

    def message(self, text: str) -> list[int]:
        """Return the tokens of a demonstrated message, end of turn included. Shape (M,).

        If the prompt opened a thought, the message closes it first, because a demonstration has
        none.
        """
        if self.thought_opened and "</think>" not in text:
            text = f"\n</think>\n\n{text}"
        return [*self._encode(text), self.stop_tokens[0]]

    def text(self, tokens: Sequence[int]) -> str:
        """Decode the policy's tokens without special tokens, but keep the marks of a thought."""
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
        decoded = self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(decoded, str)
        return decoded

    def action(self, tokens: Sequence[int]) -> str:
        """Return the action in the policy's message.

        Raises:
            MalformedActionError: The message is malformed. Only for "react".
        """
        return self.action_in(self.text(tokens))

    def action_in(self, text: str) -> str:
        """Return the action in the text of the policy's message. Raises as `action` does."""
        return read_action(text, self.action_format, self.thought_opened)

    def _check_template(self, template: str, variables: Mapping[str, Any]) -> None:
        """Reject templates whose messages cannot be read, and unused variables.

        Raises:
            ChatTemplateError: The template writes channels or does not use a variable.
        """
        if "<|channel|>" in template:
            raise self._fault(
                "writes messages in channels (harmony), where the first end token closes the analysis and not the message",
                code="channels",
            )
        if unused := [name for name in variables if name not in template]:
            raise ChatTemplateError(
                f"policy.chat_template_kwargs: the chat template of {self._tokenizer.name_or_path!r} does not use "
                f"the variable {unused[0]!r}. Correct the name or remove it.",
                code="unused_variable",
            )

    def _opening(self, instruction: str | None, observation: str) -> list[Message]:
        if self._opening_messages is not None:
            return [*self._opening_messages, {"role": "user", "content": observation}]
        if instruction is None:
            return [{"role": "user", "content": observation}]
        if self.system_role:
            return [{"role": "system", "content": instruction}, {"role": "user", "content": observation}]
        return [{"role": "user", "content": f"{instruction}\n\n{observation}"}]

    def _render(self, messages: list[Message]) -> str:
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **self._render_options)
        assert isinstance(text, str)
        return text

    def _tail(self, observation: str) -> str:
        """Return the template's text after the policy's message when `observation` answers it."""
        messages = [
            *self._opening(self._instruction, _FIRST),
            {"role": "assistant", "content": _REPLY},
            {"role": "user", "content": observation},
        ]
        return self._render(messages).partition(_REPLY)[2]

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

    def _checked_tail(self) -> str:
        """Return the tail of a turn after checking that it is the same in every turn.

        Raises:
            ChatTemplateError: The tail changes as the conversation grows. The message names the
                cause.
        """
        marks = [_FIRST, _REPLY, _SECOND, _LATER_REPLY, _THIRD]
        opening = self._opening(None if self._instruction is None else _INSTRUCTION, _FIRST)
        conversation = [
            *opening,
            {"role": "assistant", "content": _REPLY},
            {"role": "user", "content": _SECOND},
            {"role": "assistant", "content": _LATER_REPLY},
            {"role": "user", "content": _THIRD},
        ]
        lengths = (len(opening), len(opening) + 2, len(opening) + 4)
        try:
            one, two, three = (self._split(self._render(conversation[:n]), marks[: 2 * turn + 1]) for turn, n in enumerate(lengths))
        except TemplateError as error:
            raise self._fault(f"rejects alternating user and assistant messages ({error})", code="rejected_roles") from error
        if not one[0] == two[0] == three[0]:
            raise self._fault("changes the beginning of the conversation when later messages follow", code="changed_opening")
        if self._instruction is not None and one[0].count(_INSTRUCTION) != 1:
            raise self._fault("does not write the instruction exactly once before the first observation", code="instruction")
        if not one[-1] == two[-1] == three[-1]:
            raise self._fault("starts the policy's later turns differently from its first turn", code="changed_turn_start")
        if not two[2] == three[2] == three[4]:
            raise self._fault("changes the text between two turns when later messages follow", code="changed_turn_gap")
        return f"{two[2]}{_SECOND}{two[3]}"

    def _split(self, text: str, marks: list[str]) -> list[str]:
        """Return the pieces of `text` around the marks, one more than there are marks."""
        pieces = []
        for mark in marks:
            if text.count(mark) != 1:
                raise self._fault("does not write each message exactly once, in order", code="missing_message")
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
        return list(self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def _has_special_text(self, text: str) -> bool:
        return any(special in text for special in self._special_texts)

    def _encode_after_reply(self, tail: str) -> list[int]:
        """Encode the text after a message in context.

        A tokenizer that marks the start of a text then adds no mark here.

        Raises:
            ChatTemplateError: The end of a message and the following text share a token.
        """
        tokens = self._encode(_REPLY + tail)
        if tokens[: len(self._anchor)] != self._anchor:
            raise self._fault("merges the end of a message and the following text into one token", code="shared_token")
        return tokens[len(self._anchor) :]

    def _find_end_of_turn(self, tail: list[int]) -> int | None:
        """Return the first special token of the tail, which ends the policy's turn.

        None if there is none, or if text other than whitespace precedes it.
        """
        special = {token for token, added in self._tokenizer.added_tokens_decoder.items() if added.special}
        for position, token in enumerate(tail):
            if token in special:
                return token if not self.text(tail[:position]).strip() else None
        return None
