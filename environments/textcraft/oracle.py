"""The oracle: a short plan from the held items to the goal.

Fix one recipe for each item and one member for each kind. The items to get and craft then follow by
adding up demand from the goal downwards, as in material requirements planning. Every item is
processed after everything that consumes it, so its total demand is known. Held items are used
first. The remainder is one `get` or the fewest crafts.

The choices are searched depth-first with a bound. Executing a plan's first action leaves a plan
that is one action shorter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from graphlib import TopologicalSorter

from environments.environment import OracleError
from environments.textcraft.recipes import Recipe, RecipeBook, recipe_book


@dataclass(slots=True)
class _Draft:
    """A partial plan.

    Attributes:
        demand: Demand for each pending item or kind. For items the demand stays after it is met.
        pending: Items and kinds whose demand is not met yet.
        pools: For each kind, the items reserved for it.
        gets: Count of each raw item to get.
        crafts: Recipes with the number of times to use them, the goal first.
        cost: Number of actions so far.
    """

    demand: dict[str, int]
    pending: set[str]
    pools: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    gets: dict[str, int] = field(default_factory=dict)
    crafts: list[tuple[Recipe, int]] = field(default_factory=list)
    cost: int = 0

    def branch(self) -> _Draft:
        return _Draft(
            dict(self.demand),
            set(self.pending),
            dict(self.pools),
            dict(self.gets),
            list(self.crafts),
            self.cost,
        )

    def want(self, name: str, count: int) -> None:
        self.demand[name] = self.demand.get(name, 0) + count
        self.pending.add(name)


def plan(goal: str, inventory: Mapping[str, int], book: RecipeBook | None = None) -> list[str]:
    """Return actions that craft `goal` from `inventory`.

    All gets come first, in the order of their use. The crafts follow, ingredients first.

    Args:
        goal: Item to craft.
        inventory: Item -> count held.
        book: Recipes in force. None for the game's.

    Raises:
        OracleError: Nothing crafts `goal`.
    """
    return list(_actions(_shortest(goal, inventory, book or recipe_book())))


@lru_cache(maxsize=512)
def next_step(goal: str, held: tuple[tuple[str, int], ...], book: RecipeBook) -> tuple[str, str]:
    """Return the oracle's thought and action for the current turn.

    The action is the first one of a plan as short as `plan`'s, in which every item is got just
    before its use.

    The thought leads from the goal to the missing item, one crafting command at a time. At each
    step it follows the first ingredient that is not held. Example: "dib: 16 dib using 3 kav; kav: 1
    kav using 4 fef 3 times; fef: get". Each part follows from the previous part and one line of the
    task. A policy that cannot plan the whole way at once can still write it step by step (arXiv
    2201.11903).

    Args:
        goal: Item to craft.
        held: Pairs of item and count held.
        book: Recipes in force.

    Returns:
        Thought and action.

    Raises:
        OracleError: Nothing crafts `goal`.
    """
    inventory = dict(held)
    draft = _shortest(goal, inventory, book)
    crafts: dict[str, list[tuple[Recipe, dict[str, int]]]] = {}
    for recipe, given in _crafts(draft):
        crafts.setdefault(recipe.output, []).append((recipe, given))
    parts: list[str] = []
    item = goal
    while True:
        recipe, given = crafts[item][0]
        times = f" {len(crafts[item])} times" if len(crafts[item]) > 1 else ""
        parts.append(f"{item}: {_command(recipe, given)}{times}")
        wanted: Counter[str] = Counter()
        for _, taken in crafts[item]:
            wanted.update(taken)
        for name in given:
            is_lacking = inventory.get(name, 0) < wanted[name]
            if is_lacking and name in draft.gets:
                return "; ".join([*parts, f"{name}: get"]), f"get {draft.gets[name]} {name}"
            if is_lacking and name in crafts:
                item = name
                break
            # Held, or missing only for a later use of this recipe with other members of a kind.
            parts.append(f"{name}: hold")
        else:
            return "; ".join(parts), f"craft {_command(recipe, given)}"


def _shortest(goal: str, inventory: Mapping[str, int], book: RecipeBook) -> _Draft:
    """Return the draft with the fewest actions. Ties go to the first one found."""
    if goal not in book.recipes:
        raise OracleError(f"nothing crafts {goal!r}")
    start = _Draft({}, set())
    start.want(goal, inventory.get(goal, 0) + 1)
    best: _Draft | None = None
    drafts = [_extend(start, inventory, book)]
    while drafts:
        draft = next(drafts[-1], None)
        if draft is None:
            drafts.pop()
        elif best is not None and draft.cost >= best.cost:
            continue
        elif draft.pending:
            drafts.append(_extend(draft, inventory, book))
        else:
            best = draft
    if best is None:
        raise OracleError(f"found no way to craft {goal!r}")
    return best


def _extend(draft: _Draft, inventory: Mapping[str, int], book: RecipeBook) -> Iterator[_Draft]:
    """Meet the pending demand that no other pending demand can raise, in every possible way."""
    rank = _ranks(book)
    name = min(draft.pending, key=rank.__getitem__)
    draft = draft.branch()
    draft.pending.remove(name)
    lacking = draft.demand[name]
    if name in book.members:
        pool: list[tuple[str, int]] = []
        draft.pools[name] = pool
        for item in book.members[name]:
            # Demand for this specific item comes first. The kind gets the remainder.
            spare = min(
                lacking, inventory.get(item, 0) - (draft.demand.get(item, 0) if item != name else 0)
            )
            if spare > 0:
                pool.append((item, spare))
                lacking -= spare
                if item != name:
                    draft.demand[item] = draft.demand.get(item, 0) + spare
    else:
        lacking -= inventory.get(name, 0)
    if lacking <= 0:
        yield draft
    elif name in book.raw:
        draft.gets[name] = lacking
        draft.cost += 1
        if name in book.members:
            draft.pools[name].append((name, lacking))
        yield draft
    elif name in book.members:
        for item in book.members[name]:
            if book.depth[item] == book.depth[name]:
                choice = draft.branch()
                choice.pools[name] = [*draft.pools[name], (item, lacking)]
                choice.want(item, lacking)
                yield choice
    else:
        for recipe in book.recipes[name]:
            runs = -(-lacking // recipe.count)
            choice = draft.branch()
            choice.crafts.append((recipe, runs))
            choice.cost += runs
            for ingredient, count in recipe.ingredients:
                choice.want(ingredient, runs * count)
            yield choice


def _actions(draft: _Draft) -> Iterator[str]:
    """Return the plan as actions in an executable order.

    Items are got in the order in which the crafts consume them.
    """
    crafts = _crafts(draft)
    for item in dict.fromkeys(item for _, given in crafts for item in given):
        if item in draft.gets:
            yield f"get {draft.gets[item]} {item}"
    for recipe, given in crafts:
        yield f"craft {_command(recipe, given)}"


def _crafts(draft: _Draft) -> list[tuple[Recipe, dict[str, int]]]:
    """Return each craft with the concrete items that it consumes, ingredients first."""
    pools = {kind: list(pool) for kind, pool in draft.pools.items()}
    found = []
    for recipe, runs in reversed(draft.crafts):
        for _ in range(runs):
            given: Counter[str] = Counter()
            for name, count in recipe.ingredients:
                for item, taken in _draw(pools, name, count):
                    given[item] += taken
            found.append((recipe, dict(given)))
    return found


def _command(recipe: Recipe, given: Mapping[str, int]) -> str:
    return f"{recipe.count} {recipe.output} using " + ", ".join(
        f"{count} {item}" for item, count in given.items()
    )


def _draw(
    pools: dict[str, list[tuple[str, int]]], name: str, count: int
) -> Iterator[tuple[str, int]]:
    """Yield items that add up to `count` of an ingredient.

    A kind is served from the items reserved for it.
    """
    if name not in pools:
        yield name, count
        return
    pool = pools[name]
    while count:
        item, available = pool.pop(0)
        taken = min(count, available)
        if taken < available:
            pool.insert(0, (item, available - taken))
        yield item, taken
        count -= taken


@lru_cache(maxsize=512)
def _ranks(book: RecipeBook) -> dict[str, int]:
    """Return a topological rank of all names.

    Each name comes after everything that can raise its demand or use its held items.
    """
    after: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(book.depth, ()))
    for output, recipes in book.recipes.items():
        for recipe in recipes:
            for name, _ in recipe.ingredients:
                after.add(name, output)
                for kind, members in book.members.items():
                    if name in members and name != kind and output not in members:
                        after.add(kind, output if name not in book.members else name)
    for kind, members in book.members.items():
        for item in members:
            if item not in book.members:
                after.add(item, kind)
            elif item != kind:
                after.add(kind, item)
    return {name: rank for rank, name in enumerate(after.static_order())}
