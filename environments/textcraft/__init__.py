"""TextCraft: craft a Minecraft item by getting raw materials and following crafting commands."""
