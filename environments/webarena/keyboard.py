"""Key presses of one agent in a browser that many agents share."""

from __future__ import annotations

from playwright.async_api import Page

from environments.webarena import page_scripts
from environments.webarena.actions import Press


class Keyboard:
    """Presses keys and keeps a private clipboard.

    Chromium shares one clipboard among its windows.
    """

    def __init__(self) -> None:
        self._clipboard = ""

    async def press(self, page: Page, action: Press) -> None:
        """Press an action's keys on a page. Cut, copy and paste use the agent's own clipboard."""
        letter = action.key.lower()
        if action.modifiers not in (("Control",), ("Meta",)) or letter not in ("c", "x", "v"):
            await page.keyboard.press("+".join((*action.modifiers, action.key)))
        elif letter == "v":
            await page.keyboard.insert_text(self._clipboard)
        else:
            self._clipboard = str(await page.evaluate(page_scripts.SELECTION))
            if letter == "x" and self._clipboard:
                await page.keyboard.press("Delete")
