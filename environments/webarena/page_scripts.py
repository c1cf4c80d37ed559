"""JavaScript that runs in the pages."""

from __future__ import annotations

SCROLL = """direction => {
    const before = scrollY;
    window.scrollBy({top: direction * window.innerHeight, behavior: 'instant'});
    return scrollY !== before;
}"""
"""Scrolls by one window height. Returns false if the page cannot scroll further."""

SELECTION = """() => {
    const field = document.activeElement;
    const isField = field && typeof field.value === 'string' && typeof field.selectionStart === 'number';
    return isField ? field.value.slice(field.selectionStart, field.selectionEnd) : String(getSelection());
}"""

CHOOSE = """function () {
    if (this instanceof HTMLSelectElement) { this.focus(); return true; }
    const select = this instanceof HTMLOptionElement ? this.closest('select') : null;
    if (!select || this.disabled) return false;
    this.selected = select.multiple ? !this.selected : true;
    for (const kind of ['input', 'change']) select.dispatchEvent(new Event(kind, {bubbles: true}));
    return true;
}"""
"""Selects an option of a menu, or focuses a menu without opening it.

The list that would open belongs to no page. Returns false for other elements.
"""

CHOOSE_BY_TEXT = """function (text) {
    if (!(this instanceof HTMLSelectElement)) return null;
    const wanted = text.trim().toLowerCase();
    const option = [...this.options].find(option => option.label.trim().toLowerCase() === wanted);
    if (!option) return false;
    option.selected = true;
    for (const kind of ['input', 'change']) this.dispatchEvent(new Event(kind, {bubbles: true}));
    return true;
}"""
"""Selects the option with that text.

Returns true, false if there is no such option, or null if the element is not a menu.
"""

AFTER_TASKS = "new Promise(done => setTimeout(() => done(document.readyState), 0))"
"""Resolves to the document's readyState once the tasks that an event queued have started."""

OPENED = """() => {
    const [{name, responseStatus} = {}] = performance.getEntriesByType('navigation');
    return [name ?? '', responseStatus ?? 0, location.protocol === 'chrome-error:'];
}"""
"""Returns the page's address, its status (0 if unknown), and whether it could not be loaded."""

STATUSES = """async urls => {
    const statuses = [];
    for (const url of urls) statuses.push((await fetch(url, {cache: 'no-store'})).status);
    return statuses;
}"""
"""Requests addresses of the page's own site. Returns the status of each answer."""

STILL = """addEventListener('DOMContentLoaded', () => {
    const style = document.createElement('style');
    const still = 'animation: none !important; transition: none !important; scroll-behavior: auto !important';
    style.textContent = `*, *::before, *::after { ${still} }`;
    document.head.append(style);
})"""
"""Disables animations on sites that are not embedded."""
