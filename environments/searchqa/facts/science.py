"""Facts on elements and isotopes (mendeleev, MIT) and on ISO code lists (pycountry, LGPL).

The code lists cover languages, scripts and currencies.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

import pycountry
from mendeleev.fetch import fetch_table

from environments.searchqa.facts.geography import language_thing
from environments.searchqa.facts.model import Facts, Statement, Thing, value

_LANGUAGE_TYPES = {
    "A": "an ancient",
    "C": "a constructed",
    "E": "an extinct",
    "H": "a historical",
    "L": "a living",
    "S": "a special",
}


def add_elements(facts: Facts) -> None:
    """Add up to two passages for each element and one for each isotope."""
    countries = {country.name: country for country in facts.objects["capital"]}
    names: dict[int, str] = {}
    for record in fetch_table("elements").sort_values("atomic_number").to_dict("records"):
        names[record["atomic_number"]] = record["name"]
        _add_element(facts, record, countries)
    for record in (
        fetch_table("isotopes").sort_values(["atomic_number", "mass_number"]).to_dict("records")
    ):
        name = f"{names[record['atomic_number']]}-{record['mass_number']}"
        isotope = Thing("isotope", name, name)
        stable = "stable" if not record["is_radioactive"] else "radioactive"
        text = f"{name} is a {stable} isotope with the mass number {record['mass_number']}."
        statements: list[Statement] = []
        if not math.isnan(record["discovery_year"]):
            year = value(f"{record['discovery_year']:.0f}")
            text += f" It was first observed in {year.name}."
            statements.append((isotope, "isotope year", year))
        facts.add(name, text, statements)


def _add_element(facts: Facts, record: Mapping[Hashable, Any], countries: dict[str, Thing]) -> None:
    name = record["name"]
    element = Thing("element", name, name)
    symbol = value(record["symbol"])
    number = value(str(record["atomic_number"]))
    registry = value(record["cas"])
    text = (
        f"{name} is the chemical element with the symbol {symbol.name} and the atomic number "
        f"{number.name}. Its CAS registry number is {registry.name}."
    )
    facts.add(
        name,
        text,
        [
            (element, "symbol", symbol),
            (element, "atomic number", number),
            (element, "registry number", registry),
        ],
    )
    if math.isnan(record["discovery_year"]) or not isinstance(record["discovery_location"], str):
        return
    year, place = value(f"{record['discovery_year']:.0f}"), record["discovery_location"]
    by = record["discoverers"].rstrip(".")
    text = f"The element {name} was discovered in {year.name} in {place} by {by}."
    statements: list[Statement] = [
        (element, "discovery year", year),
        (element, "discovery place", countries.get(place, value(place))),
    ]
    if "," not in by and ";" not in by:
        statements.append((element, "discoverer", value(by)))
    facts.add(f"Discovery of {name}", text, statements)


def add_code_lists(facts: Facts) -> None:
    """Add a passage for each language, script and currency."""
    for record in sorted(pycountry.languages, key=lambda record: record.alpha_3):
        language = language_thing(record)
        code = value(record.alpha_3)
        text = f"{record.name} is {_LANGUAGE_TYPES[record.type]} language. Its code in the standard ISO 639-3 is {code.name}."
        facts.add(f"{record.name} language", text, [(language, "language code", code)])
    for record in sorted(pycountry.scripts, key=lambda record: record.alpha_4):
        script = Thing("script", record.alpha_4, record.name)
        code, number = value(record.alpha_4), value(record.numeric)
        text = f"{record.name} is a writing system. In the standard ISO 15924 it has the code {code.name} and the number {number.name}."
        facts.add(
            f"{record.name} script",
            text,
            [(script, "script code", code), (script, "script number", number)],
        )
    for record in sorted(pycountry.currencies, key=lambda record: record.alpha_3):
        currency = Thing("currency", record.alpha_3, record.name)
        code, number = value(record.alpha_3), value(record.numeric)
        text = f"The {record.name} is a currency. In the standard ISO 4217 it has the code {code.name} and the number {number.name}."
        facts.add(
            record.name,
            text,
            [(currency, "currency code", code), (currency, "currency number", number)],
        )
