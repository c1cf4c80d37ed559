"""The relations that questions follow, and their wordings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Relation:
    """The wordings of a relation, where {} stands for the entity that it starts from.

    Attributes:
        subject, object: The kinds of entity that it connects.
        phrase: Describes the object, e.g. "the capital of {}".
        ask: Questions for the object.
        search: The query that finds the object.
        described: Describes the subject by its object, e.g. "the country whose capital is {}".
            Empty if no question does so.
    """

    subject: str
    object: str
    phrase: str
    ask: tuple[str, ...]
    search: str
    described: str = ""


def _relation(
    subject: str,
    object_: str,
    phrase: str,
    search: str = "",
    *,
    ask: tuple[str, ...] = (),
    described: str = "",
) -> Relation:
    return Relation(
        subject,
        object_,
        phrase,
        ask or (f"What is {phrase}?", f"Name {phrase}."),
        search or phrase,
        described,
    )


RELATIONS: dict[str, Relation] = {
    "airport country": _relation(
        "airport", "country", "the country where {} is located", "{} country",
        ask=("In which country is {} located?", "Which country is {} in?"),
    ),
    "airport city": _relation(
        "airport", "city", "the city that {} serves", "{} serves",
        ask=("Which city does {} serve?", "What city is served by {}?"),
    ),
    "elevation": _relation(
        "airport", "value", "the elevation in feet of {}", "{} elevation feet above sea level",
        ask=("How many feet above sea level does {} lie?", "What is the elevation in feet of {}?"),
    ),
    "IATA": _relation("airport", "value", "the IATA code of {}", described="the airport with the IATA code {}"),
    "ICAO": _relation("airport", "value", "the ICAO code of {}", described="the airport with the ICAO code {}"),
    "city country": _relation(
        "city", "country", "the country in which {} lies", "{} country",
        ask=("In which country does {} lie?", "Which country does {} belong to?"),
    ),
    "city state": _relation(
        "city", "state", "the state in which {} lies", "{} state",
        ask=("In which state of the United States does {} lie?",),
    ),
    "city population": _relation(
        "city", "value", "the number of inhabitants of {}", "{} inhabitants",
        ask=("How many inhabitants does {} have?", "What is the number of inhabitants of {}?"),
    ),
    "time zone": _relation(
        "city", "value", "the time zone of {}", "{} time zone",
        ask=("Which time zone do the clocks of {} follow?", "What is the time zone of {}?"),
    ),
    "capital": _relation(
        "country", "city", "the capital of {}",
        ask=("What is the capital of {}?", "Which city is the capital of {}?"), described="the country whose capital is {}",
    ),
    "population": _relation("country", "value", "the population of {}"),
    "area": _relation(
        "country", "value", "the area in square kilometres of {}", "the area of {} in square kilometres",
        ask=("How many square kilometres does {} cover?", "What is the area in square kilometres of {}?"),
    ),
    "currency": _relation(
        "country", "currency", "the currency of {}", ask=("What is the currency of {}?", "Which currency is used in {}?"),
    ),
    "main language": _relation(
        "country", "language", "the most widely spoken language in {}",
        ask=("Which language is the most widely spoken in {}?", "What is the most widely spoken language in {}?"),
    ),
    "domain": _relation(
        "country", "value", "the internet top-level domain of {}", described="the country with the internet top-level domain {}",
    ),
    "dialling code": _relation(
        "country", "value", "the international dialling code of {}",
        described="the country that is called from abroad with the dialling code {}",
    ),
    "three-letter code": _relation(
        "country", "value", "the three-letter ISO 3166-1 code of {}", described="the country with the three-letter ISO 3166-1 code {}",
    ),
    "country number": _relation("country", "value", "the ISO 3166-1 number of {}"),
    "currency code": _relation("currency", "value", "the ISO 4217 code of {}", described="the currency with the ISO 4217 code {}"),
    "currency number": _relation("currency", "value", "the ISO 4217 number of {}"),
    "language code": _relation("language", "value", "the ISO 639-3 code of {}", described="the language with the ISO 639-3 code {}"),
    "script code": _relation("script", "value", "the ISO 15924 code of {}", described="the script with the ISO 15924 code {}"),
    "script number": _relation("script", "value", "the ISO 15924 number of {}"),
    "state abbreviation": _relation("state", "value", "the postal abbreviation of {}"),
    "state FIPS": _relation("state", "value", "the FIPS code of {}", "{} state FIPS code"),
    "county state": _relation(
        "county", "state", "the state to which {} belongs", "{} counties of state", ask=("To which state does {} belong?",),
    ),
    "county FIPS": _relation("county", "value", "the FIPS code of {}"),
    "subdivision country": _relation(
        "subdivision", "country", "the country to which {} belongs", "{} ISO 3166-2 country", ask=("To which country does {} belong?",),
    ),
    "subdivision code": _relation(
        "subdivision", "value", "the ISO 3166-2 code of {}", described="the region with the ISO 3166-2 code {}",
    ),
    "symbol": _relation("element", "value", "the symbol of {}", described="the chemical element with the symbol {}"),
    "atomic number": _relation(
        "element", "value", "the atomic number of {}", described="the chemical element with the atomic number {}",
    ),
    "registry number": _relation(
        "element", "value", "the CAS registry number of {}", described="the chemical element with the CAS registry number {}",
    ),
    "discovery year": _relation(
        "element", "value", "the year in which {} was discovered", "discovery of the element {} year",
        ask=("In which year was {} discovered?", "When was {} discovered?"),
    ),
    "discovery place": _relation(
        "element", "country", "the country where {} was discovered", "discovery of the element {} place",
        ask=("Where was {} discovered?", "In which country was {} discovered?"),
    ),
    "discoverer": _relation(
        "element", "value", "the discoverer of {}", "discovery of the element {} by", ask=("Who discovered {}?",),
    ),
    "isotope year": _relation(
        "isotope", "value", "the year in which {} was first observed", "isotope {} first observed",
        ask=("In which year was {} first observed?",),
    ),
}  # fmt: skip

LABELS = {
    "city": "the city of {}",
    "language": "the language {}",
    "currency": "the currency {}",
    "script": "the script {}",
    "element": "the element {}",
    "isotope": "the isotope {}",
}
"""How a question names an entity of each kind. Other kinds appear by name alone."""
