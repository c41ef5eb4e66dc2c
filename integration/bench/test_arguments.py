"""The declarations of the benches' options fit what the benches do with them."""

import pytest

from integration.bench import arguments, carriers, net, oltp, redis
from integration.lib import mariadb

BENCHES = ("oltp", "net", "redis", "model", "accept")
EXAMPLES = {"path": "here", "text": "word", "positive": "3", "number": "1.5", "numbers": "4,2", "quantity": "7",
            "quantities": "1us,2us"}


@pytest.mark.parametrize("bench", BENCHES)
def test_every_option_takes_a_value_of_its_type_and_has_a_help(bench):
    parser = arguments.parser_of(bench)
    for option in arguments.options_of(bench):
        name = option["name"]
        assert option["help"] and set(option) <= {"name", "value", "type", "choices", "unit", "default", "help"}
        if option["type"] == "flag":
            assert "value" not in option
            parsed = parser.parse_args([name])
        else:
            assert option["value"]
            given = option["choices"][0] if "choices" in option else EXAMPLES[option["type"]]
            parsed = parser.parse_args([f"{name}={given}"])
        assert getattr(parsed, name[2:].replace("-", "_")), name


@pytest.mark.parametrize("bench", BENCHES)
def test_a_default_is_a_value_of_its_option(bench):
    for option in arguments.options_of(bench):
        if "default" in option:
            arguments.type_of(option)(option["default"])


@pytest.mark.parametrize("bench", BENCHES)
def test_an_option_that_is_not_declared_is_refused(bench, capsys):
    with pytest.raises(SystemExit):
        arguments.parser_of(bench).parse_args(["--no-such-option", "1"])
    assert "--no-such-option" in capsys.readouterr().err


@pytest.mark.parametrize("bench", ("oltp", "net", "redis"))
def test_every_carrier_that_may_be_asked_for_is_one(bench):
    for name in arguments.choices(bench, "--carriers"):
        assert carriers.of(name).name == name
    assert set(carriers.NAMES) <= set(arguments.choices(bench, "--carriers"))


def test_what_may_be_asked_for_is_what_the_benches_know():
    assert arguments.choices("net", "--measures") == tuple(net.MEASURES)
    assert set(oltp.QUICK["workloads"]) <= set(oltp.WORKLOADS)
    assert set(oltp.QUICK["threading"]) <= set(oltp.THREADINGS)
    assert set(redis.QUICK["commands"]) <= set(redis.COMMANDS)
    assert arguments.default("oltp", "--server") == mariadb.PROGRAM
