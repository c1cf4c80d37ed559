"""Images of a level."""

from __future__ import annotations

from io import BytesIO

from PIL import Image

from environments.babyai.levels import QuickLevel

TILE_PIXELS = 32


def draw_level(played: QuickLevel) -> bytes:
    """Render the full grid as a PNG, 32 pixels per cell, with the agent's view highlighted."""
    picture = BytesIO()
    Image.fromarray(played.get_full_render(highlight=True, tile_size=TILE_PIXELS)).save(
        picture, "PNG"
    )
    return picture.getvalue()
