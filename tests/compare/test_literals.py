"""Text of the command line is parsed, and never evaluated."""

import pytest

from sb3_per import LAP
from sb3_per.compare.literals import setting_of, words_of


def test_settings_are_literals_and_schemes():
    assert setting_of("") == {}
    assert setting_of("scheme='lap', alpha=0.4,") == {"scheme": "lap", "alpha": 0.4}
    scheme = setting_of("scheme=LAP(kappa=0.5)")["scheme"]
    assert type(scheme) is LAP and scheme.kappa == 0.5


def test_words_have_a_name_and_a_value():
    words = ["policy_kwargs:dict(net_arch=[8, 8])", "learning_rate:1e-3", "name:'a:b'"]
    values = {"policy_kwargs": {"net_arch": [8, 8]}, "learning_rate": 0.001, "name": "a:b"}
    assert words_of("-params", words) == values


# By text of a setting: what the message says.
REFUSED = {
    "lap": "lap is no keyword argument",
    "alpha=0.5, alpha=0.6": "alpha is given twice",
    "**{'alpha': 0.5}": "is no keyword argument",
    "alpha=__import__('os').getpid()": "__import__('os').getpid cannot be called",
    "alpha=print('called')": "print cannot be called",
    "scheme=LAP": "LAP is no literal",
    "scheme=LAP(0.5)": "0.5 is no keyword argument",
    "scheme=LAP(kapa=0.5)": "kapa",
    "scheme=LAP(kappa=-1)": "kappa must be a number above 0, not -1",
    ") or print('called') or dict(": "is no literal",
    "alpha=": "invalid syntax",
}


def test_all_else_is_refused_and_not_run(capsys):
    for text, reason in REFUSED.items():
        with pytest.raises(ValueError) as refused:
            setting_of(text)
        said = str(refused.value)
        assert said.startswith(f"--setting {text}: ") and reason in said and "LAP(kappa=0.1)" in said
    assert capsys.readouterr().out == ""
