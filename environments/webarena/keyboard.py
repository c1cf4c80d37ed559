"""Keys, pressed by one agent among many in a browser."""

from __future__ import annotations

from playwright.async_api import Page

from environments.webarena import page_scripts
from environments.webarena.actions import Press


class Keyboard:
    """Presses keys, with a clipboard of its own: Chromium has one for all its windows."""

    def __init__(self) -> None:
        self._clipboard = ""

    async def press(self, page: Page, action: Press) -> None:
        """Presses the keys of an action on a page; what is cut, copied and pasted goes through the agent's own clipboard."""
        letter = action.key.lower()
        if action.modifiers not in (("Control",), ("Meta",)) or letter not in ("c", "x", "v"):
            await page.keyboard.press("+".join((*action.modifiers, action.key)))
        elif letter == "v":
            await page.keyboard.insert_text(self._clipboard)
        else:
            self._clipboard = str(await page.evaluate(page_scripts.SELECTION))
            if letter == "x" and self._clipboard:
                await page.keyboard.press("Delete")
