# SPDX-License-Identifier: Apache-2.0
"""Words the judge knows: numbers, months, weekdays, drugs, and words that only say "I am listening"."""

from __future__ import annotations

from typing import Final


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split())


UNITS: Final = {
    word: value
    for value, word in enumerate(
        _list(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
            "sixteen seventeen eighteen nineteen"
        )
    )
}
TENS: Final = {
    word: 10 * value
    for value, word in enumerate(_list("twenty thirty forty fifty sixty seventy eighty ninety"), 2)
}
ORDINALS: Final = {
    word: value
    for value, word in enumerate(
        _list(
            "third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
            "fifteenth sixteenth seventeenth eighteenth nineteenth"
        ),
        3,
    )
} | {
    word: 10 * value
    for value, word in enumerate(
        _list("twentieth thirtieth fortieth fiftieth sixtieth seventieth eightieth ninetieth"), 2
    )
}
SCALES: Final = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
REPEATS: Final = {"double": 2, "triple": 3}
# May is left out: it is more often a verb than a month
MONTHS: Final = frozenset(
    _list("january february march april june july august september october november december")
)
WEEKDAYS: Final = frozenset(_list("monday tuesday wednesday thursday friday saturday sunday"))
SAME: Final = {
    "mg": "milligrams",
    "milligram": "milligrams",
    "ml": "milliliters",
    "doctor": "dr",
    "mister": "mr",
    "okay": "ok",
    "street": "st",
    "avenue": "ave",
    "dollar": "dollars",
    "cent": "cents",
}
"""Spellings of the same spoken word."""

DRUGS: Final = frozenset(
    _list(
        """acetaminophen albuterol alprazolam amlodipine amoxicillin apixaban aspirin atenolol atorvastatin
        azithromycin bupropion carvedilol cephalexin citalopram clonazepam clonidine clopidogrel codeine
        diazepam doxycycline duloxetine escitalopram famotidine fluoxetine furosemide gabapentin glipizide
        hydralazine hydrochlorothiazide hydrocodone hydroxyzine ibuprofen insulin lamotrigine levothyroxine
        lisinopril loratadine lorazepam losartan meloxicam metformin methotrexate metoprolol montelukast
        naproxen omeprazole ondansetron oxycodone pantoprazole paracetamol penicillin pravastatin prednisone
        propranolol quetiapine ranitidine rosuvastatin sertraline simvastatin spironolactone tamsulosin
        tramadol trazodone valsartan venlafaxine verapamil warfarin zolpidem"""
    )
)
"""Drugs that are often prescribed, and often mistaken for one another."""

BACKCHANNELS: Final = frozenset(
    _list(
        """mhm mm mmm hm hmm uh uhhuh huh yeah yes yep yup ok okay right sure alright aha ah oh good great
        fine ja genau si sì oui"""
    )
)
