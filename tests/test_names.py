import pytest

from emcaps.names import check_name, shown, unknown_name


def test_unknown_name_suggests_the_nearest():
    assert unknown_name("preset", "smal", ["tiny", "small"]) == (
        "unknown preset 'smal': did you mean 'small'? (allowed: tiny, small)"
    )


def test_unknown_name_far_from_all_lists_them_only():
    assert unknown_name("preset", "xyz", ["tiny", "small"]) == "unknown preset 'xyz' (allowed: tiny, small)"


def test_check_name_accepts_and_rejects():
    check_name("view", "mono", ("mono", "stereo"))
    with pytest.raises(ValueError, match="unknown view 'stero': did you mean 'stereo'"):
        check_name("view", "stero", ("mono", "stereo"))


def test_shown_is_short_whatever_the_value():
    assert shown("a") == "'a'"
    assert len(shown("a" * 1000)) < 130
    assert shown(10**5000) == "a value of type int that is too long to show"
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert shown(nested) == "a value of type list that is too long to show"
