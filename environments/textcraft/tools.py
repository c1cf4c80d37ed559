"""The actions of TextCraft as tools."""

from environments.tools import Tool, integer, text, texts

TOOLS = (
    Tool(
        "get",
        "Take raw items, which nothing crafts.",
        {"count": integer("How many to take."), "item": text("Name of the item, e.g. oak log.")},
        "get {count} {item}",
    ),
    Tool(
        "craft",
        "Carry out one of the crafting commands once.",
        {
            "count": integer("How many items the command makes."),
            "item": text("Name of the item that it makes."),
            "ingredients": texts(
                'Count and name of each ingredient, e.g. ["2 oak planks", "1 stick"].'
            ),
        },
        "craft {count} {item} using {ingredients}",
    ),
    Tool("inventory", "List the items that you hold.", action="inventory"),
)
