"""The JavaScript that is run in pages."""

from __future__ import annotations

SCROLL = """direction => {
    const before = scrollY;
    window.scrollBy({top: direction * window.innerHeight, behavior: 'instant'});
    return scrollY !== before;
}"""
"""Scrolls by one window's height; false where the page has no more in that direction."""

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
"""Chooses an option of a menu, or goes to a menu without opening it: the list that would open belongs to no page. Else false."""

CHOOSE_BY_TEXT = """function (text) {
    if (!(this instanceof HTMLSelectElement)) return null;
    const wanted = text.trim().toLowerCase();
    const option = [...this.options].find(option => option.label.trim().toLowerCase() === wanted);
    if (!option) return false;
    option.selected = true;
    for (const kind of ['input', 'change']) this.dispatchEvent(new Event(kind, {bubbles: true}));
    return true;
}"""
"""Chooses the option with that text: true, false if there is none, null if this is no menu."""

AFTER_TASKS = "new Promise(done => setTimeout(() => done(document.readyState), 0))"
"""The document's state when what an event began in the page has begun."""

STILL = """addEventListener('DOMContentLoaded', () => {
    const style = document.createElement('style');
    const still = 'animation: none !important; transition: none !important; scroll-behavior: auto !important';
    style.textContent = `*, *::before, *::after { ${still} }`;
    document.head.append(style);
})"""
"""Ends animations on sites that are not ours."""
