"""BabyAI: an agent in a grid world of rooms, doors, keys, balls and boxes carries out a mission given in words."""
