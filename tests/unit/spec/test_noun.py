"""Invalid input is refused with one message that gives file, key and value."""

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.system import System


def test_a_noun_is_read_from_plain_data() -> None:
    assert System.parse({"devices": 4}, "system.yaml").devices == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"devices": 0}, r"system\.yaml: devices: should be greater than 0, got 0"),
        ({"devices": "many"}, r"system\.yaml: devices: should be a valid integer.*got 'many'"),
        ({"device": 4}, r"system\.yaml: device: is not a known key, got 4"),
        ({"clock_hz": -1.0}, r"system\.yaml: clock_hz: should be greater than 0, got -1.0"),
        ([1], r"system\.yaml: .* got \[1\]"),
    ],
)
def test_bad_input_names_file_key_and_value(data: object, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        System.parse(data, "system.yaml")
