"""The options of the benches as benches.json declares them; the command's help is made from the same file.

A declaration has a `name`, the word that its help has for the `value`, a `type`, and perhaps:

  choices   of a list of words: all of them
  unit      that a quantity may end with
  default   as it would be given; a list without one has all of its choices, or what the bench takes then
  help      where {choices} and {default} stand for those
"""

import argparse
import json
import math
from pathlib import Path

# Those that measure nothing themselves.
ALONE = ("model", "accept")
DECLARED = json.loads(Path(__file__).with_name("benches.json").read_text())


def options_of(bench):
    """The declarations of a bench, those that most of them have included."""
    return DECLARED[bench] + (DECLARED["shared"] if bench not in ALONE else [])


def declared(bench, name):
    return next(option for option in options_of(bench) if option["name"] == name)


def choices(bench, name):
    return tuple(declared(bench, name)["choices"])


def default(bench, name):
    option = declared(bench, name)
    return type_of(option)(option["default"])


def parser_of(bench):
    """Lists that may be shorter with --quick are None where they are not given."""
    parser = argparse.ArgumentParser(prog=f"ringroad bench {bench}", add_help=False, allow_abbrev=False)
    parser.add_argument("--ringroad", default="ringroad")  # as every bench is told
    for option in options_of(bench):
        if option["type"] == "flag":
            parser.add_argument(option["name"], action="store_true")
            continue
        given = None if option["type"] in LISTS else option.get("default", "").replace("NAME", bench)
        parser.add_argument(option["name"], type=type_of(option), default=given or None)
    return parser


def type_of(option):
    if option["type"] == "words":
        return one_or_more(option["choices"])
    if option["type"] == "quantity":
        return lambda text: quantity(text, option.get("unit", ""))
    if option["type"] == "quantities":
        return lambda text: quantities(text, option["unit"])
    return TYPES[option["type"]]


def one_or_more(names):
    """A type of arguments: words of `names`, joined by commas."""
    def split(text):
        words = text.split(",")
        for word in words:
            if word not in names:
                raise argparse.ArgumentTypeError(f"there is no \"{word}\"; there are "
                                                 f"{', '.join(names)}")
        return [name for name in names if name in words]
    return split


def positive(text):
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def numbers(text):
    """A type of arguments: positive numbers, joined by commas."""
    return sorted({positive(word) for word in text.split(",")})


def quantity(text, unit):
    try:
        number = float(text.removesuffix(unit))
    except ValueError:
        number = 0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"\"{text}\" is not a positive number" +
                                         (f" of {unit}" if unit else ""))
    return number


def quantities(text, unit):
    """Joined by commas, from the smallest."""
    return sorted({quantity(word, unit) for word in text.split(",")})


LISTS = ("words", "numbers")
TYPES = {"path": Path, "text": str, "positive": positive, "number": float, "numbers": numbers}
