"""Action parser. The result depends on the action text and the recipe book alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from environments.action_text import without_punctuation
from environments.environment import InvalidActionError
from environments.textcraft.recipes import Recipe, RecipeBook, recipe_book

MAX_CHARACTERS = 500
MAX_COUNT = 9999
FORMS = "The actions are: 'get N item', 'craft N item using N item, N item' and 'inventory'."

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Get:
    """Take `count` of a raw item."""

    item: str
    count: int


@dataclass(frozen=True, slots=True)
class Craft:
    """Use `recipe` once with the `given` items. The items match the recipe's ingredients."""

    recipe: Recipe
    given: dict[str, int]


@dataclass(frozen=True, slots=True)
class Inventory:
    """List the held items."""


def check_length(action: str) -> None:
    """Reject an action of more than MAX_CHARACTERS characters.

    Raises:
        InvalidActionError: The action is too long. The message is the observation.
    """
    if len(action) > MAX_CHARACTERS:
        raise InvalidActionError(
            f"The action has {len(action)} characters; at most {MAX_CHARACTERS} are read. {FORMS}"
        )


def parse_action(action: str, book: RecipeBook | None = None) -> Get | Craft | Inventory:
    """Parse an action under our rules.

    Case, surrounding punctuation and spaces, `minecraft:` and underscores are ignored.

    Args:
        book: Recipes in force. None for the game's.

    Raises:
        InvalidActionError: It is not an action of this environment. The message is the observation.
    """
    check_length(action)
    text = without_punctuation(action)
    if not text:
        raise InvalidActionError(f"The action is empty. {FORMS}")
    if not text.isascii() or not text.isprintable():
        raise InvalidActionError(
            f"Only one line of plain letters, digits, commas and spaces is understood. {FORMS}"
        )
    return _parse(text, book or recipe_book())


@lru_cache(maxsize=2048)
def _parse(text: str, book: RecipeBook) -> Get | Craft | Inventory:
    verb, _, rest = text.lower().replace("_", " ").partition(" ")
    if verb == "get":
        return _parse_get(rest, book)
    if verb == "craft":
        return _parse_craft(rest, book)
    if verb == "inventory" and not rest:
        return Inventory()
    raise InvalidActionError(f"The action '{_shown(text)}' is not understood. {FORMS}")


def _parse_get(text: str, book: RecipeBook) -> Get:
    count, name = _counted(text, "get N item")
    if "," in name:
        raise InvalidActionError("Only one item can be got at a time: 'get N item'.")
    item = _item(name, book)
    if item in book.raw:
        return Get(item, count)
    if item in book.members:
        raise InvalidActionError(
            f"'{item}' means any of {_some_members(book, item)}; each must be crafted."
        )
    raise InvalidActionError(
        f"Could not find {item}: it must be crafted. 'get' is for items that nothing crafts."
    )


def _parse_craft(text: str, book: RecipeBook) -> Craft:
    form = "craft N item using N item, N item"
    target, using, listed = text.partition(" using ")
    if not using:
        raise InvalidActionError(f"Say what to use: '{form}'.")
    count, name = _counted(target, form)
    output = _item(name, book)
    given: dict[str, int] = {}
    for part in listed.split(","):
        n, name = _counted(part, form)
        item = _item(name, book)
        given[item] = given.get(item, 0) + n

    if output in book.members:
        raise InvalidActionError(
            f"'{output}' means any of {_some_members(book, output)}; name the one to craft."
        )
    if output not in book.recipes:
        raise InvalidActionError(f"Nothing crafts {output}; it can be got with 'get'.")
    for item in given:
        if item in book.members and item not in book.raw:
            raise InvalidActionError(
                f"'{item}' means any of {_some_members(book, item)}; name the one to use."
            )
    for recipe in book.recipes[output]:
        taken = _fill(book, recipe, given)
        if taken is None:
            continue
        if taken != dict(recipe.ingredients) or count != recipe.count:
            raise InvalidActionError(f"The counts are wrong: one craft is '{recipe.command()}'.")
        return Craft(recipe, given)
    raise InvalidActionError(f"No recipe makes {output} from {' and '.join(given)}.")


def _fill(book: RecipeBook, recipe: Recipe, given: dict[str, int]) -> dict[str, int] | None:
    """Return the given count per ingredient.

    Returns None if an item matches no ingredient or an ingredient is missing.
    """
    taken: dict[str, int] = {}
    for item, count in given.items():
        for ingredient, _ in recipe.ingredients:
            if book.satisfies(item, ingredient):
                taken[ingredient] = taken.get(ingredient, 0) + count
                break
        else:
            return None
    return taken if len(taken) == len(recipe.ingredients) else None


def _counted(text: str, form: str) -> tuple[int, str]:
    """Split text such as "4 oak planks" into count and name."""
    text = text.strip()
    digits, _, name = text.partition(" ")
    if not digits.isdigit() or not name:
        raise InvalidActionError(
            f"'{_shown(text)}' is not a count and an item, such as '2 stick': '{form}'."
        )
    count = int(digits)
    if not 1 <= count <= MAX_COUNT:
        raise InvalidActionError(
            f"The count of '{_shown(name.strip())}' must be from 1 to {MAX_COUNT}."
        )
    return count, name


def _item(name: str, book: RecipeBook) -> str:
    """Return the item or kind with this name."""
    # AgentGym's clients drop underscores and colons: "minecraft:oak_planks" may come as one word.
    item = _names(book).get(name.replace(" ", "").removeprefix("minecraft").removeprefix(":"))
    if item is None:
        raise InvalidActionError(f"Could not find {_shown(name.strip())}: there is no such item.")
    return item


@lru_cache(maxsize=512)
def _names(book: RecipeBook) -> dict[str, str]:
    """Map each item and kind, written without spaces, to its name."""
    return {name.replace(" ", ""): name for name in book.depth}


def _some_members(book: RecipeBook, kind: str) -> str:
    some = book.members[kind]
    return ", ".join(some[:3]) + ", ..." * (len(some) > 3)


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
