"""The stack grammar both ways: what is written is read, and what is read is written back."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kri_core.catalogue import ALIASES
from kri_core.config import PluginRef, RoutingConfig
from kri_core.errors import ConfigError
from kri_core.grammar import caret, parse, parse_scorer

A1R2K13 = PluginRef("tag", {"anchor": 1, "recent": 2, "mid": 13})

PART = st.from_regex(r"[a-z][a-z0-9]{0,5}", fullmatch=True)
NAMES = (
    st.lists(PART, min_size=1, max_size=3)
    .map("-".join)
    .filter(
        lambda name: name not in {*ALIASES, "tag"} and not re.fullmatch(r"([ark][0-9]+){2,}", name)
    )
)
VALUES = (
    st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.text("abcXYZ0159_.()~+:/é ", min_size=1).map(str.strip).filter(bool)
)
KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,5}[a-z]", fullmatch=True).filter(
    lambda key: key not in {"budget", "anchor", "recent", "mid"}
)
REFS = st.builds(PluginRef, NAMES, st.dictionaries(KEYS, VALUES, max_size=3), st.none() | NAMES)
COUNTS = st.integers(0, 10**9 - 1)
TAGS = st.builds(
    lambda *counts: PluginRef("tag", zip(("anchor", "recent", "mid"), counts, strict=True)),
    *[COUNTS] * 3,
)
STACKS = st.builds(
    RoutingConfig,
    split=REFS,
    budget=st.none() | COUNTS,
    scorer=st.none() | REFS,
    selector=REFS | st.just(PluginRef("top-k")),
    repairs=st.lists(REFS, max_size=3).map(tuple),
) | st.builds(RoutingConfig, split=TAGS, scorer=st.none() | REFS)


@given(STACKS)
def test_every_config_is_read_back_from_its_string(config):
    assert parse(str(config)) == config
    assert str(parse(str(config))) == str(config)


@given(REFS)
def test_every_reference_is_read_back_from_its_string(ref):
    assert parse_scorer(str(ref)) == ref


@st.composite
def spellings(draw, ref):
    """One of the ways a person may write a reference: case, `_` for `-`, spaces, any order."""
    space = st.sampled_from(["", "", " ", "\t"])

    def odd(name):
        chars = [draw(st.sampled_from([c, c.upper(), "_" if c == "-" else c])) for c in name]
        return "".join(chars)

    params = draw(st.permutations(ref.params))
    inner = ",".join(f"{draw(space)}{k}{draw(space)}={draw(space)}{v}" for k, v in params)
    dist = f"{odd(ref.dist)}{draw(space)}:{draw(space)}" if ref.dist else ""
    return f"{dist}{odd(ref.name)}{draw(space)}" + (f"[{inner}]{draw(space)}" if inner else "")


@st.composite
def written_stacks(draw):
    config = draw(STACKS.filter(lambda c: c.budget is None))
    parts = [draw(spellings(config.split)), "("]
    parts += [draw(spellings(config.scorer))] if config.scorer else []
    parts += [f" ~ {draw(spellings(config.selector))} )"]
    parts += [f" + {draw(spellings(repair))}" for repair in config.repairs]
    return config, "".join(parts)


@given(written_stacks())
def test_case_dashes_spaces_and_order_do_not_matter(pair):
    config, written = pair

    assert parse(written) == config
    assert str(parse(written)) == str(config)


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_an_alias_is_written_back_as_the_plugin_s_own_name(alias, name):
    written = alias.upper().replace("-", "_")

    assert str(parse(f"A0R0K16({written})")) == f"A0R0K16({name})"
    assert PluginRef(written) == PluginRef(name)


@given(NAMES | VALUES, st.dictionaries(KEYS, VALUES, max_size=2))
def test_a_member_of_a_family_is_read_back_from_its_string(press, params):
    """Whatever stands for it: only what the grammar could read is written after the colon."""
    ref = PluginRef("kvpress", {**params, "press": press})

    assert parse_scorer(str(ref)) == ref


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("kvpress:knorm", "kvpress:knorm"),
        ("KVPRESS : Exp_Attention[b=2, a=1]", "kvpress:exp-attention[a=1,b=2]"),
        ("kvpress[press=knorm]", "kvpress:knorm"),
        ("kvpress[press=KNorm]", "kvpress[press=KNorm]"),  # the plugin says what it is
        ("kvpress[press=A1R2K13]", "kvpress[press=A1R2K13]"),
        ("kvpress:triattention", "kvpress:triattention"),  # an alias is a plugin's, not a press's
        ("kvpress[pool=max]", "kvpress[pool=max]"),
        ("kri-plugin-kvpress:kvpress[press=knorm]", "kri-plugin-kvpress:kvpress[press=knorm]"),
        ("kvpres:knorm", "kvpres:knorm"),  # a package
    ],
)
def test_a_member_of_a_family_is_a_parameter_and_not_a_package_s_plugin(written, canonical):
    ref = parse_scorer(written)

    assert str(ref) == canonical
    assert (ref.name == "kvpress") == (ref.dist != "kvpres")
    assert parse_scorer(canonical) == ref
    assert str(parse(f"A1R2K13({written})")) == f"A1R2K13({canonical})"


def test_a_member_that_is_given_twice_is_pointed_at():
    with pytest.raises(ConfigError) as caught:
        parse("A1R2K13(kvpress:knorm[press=snapkv])")

    assert str(caught.value) == (
        "parameter 'press' is given twice; keep one\n"
        "  A1R2K13(kvpress:knorm[press=snapkv])\n"
        "          ^"
    )


@given(st.text(st.sampled_from("AaRrKk019-_.:[]=,()~+ tagbudget\t\n⁹é\ud800"), max_size=40))
@settings(max_examples=500)
def test_any_text_is_a_stack_or_an_error_that_points_into_it(text):
    try:
        config = parse(text)
    except ConfigError as error:
        assert_points_into(text, str(error))
    else:
        assert parse(str(config)) == config


@given(st.text(max_size=40))
def test_any_unicode_text_is_a_stack_or_an_error_that_points_into_it(text):
    try:
        parse(text)
    except ConfigError as error:
        assert_points_into(text, str(error))


def assert_points_into(text, message):
    said, shown, pointer = message.split("\n")
    assert said
    assert len(shown) == len(text) + 2
    assert re.fullmatch(r"  ( *)\^", pointer)
    assert len(pointer) - 3 <= len(text)
    assert (shown + pointer).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "a" * 100_000,
        "-" * 100_000,
        "A1" * 50_000 + "-",
        "A" + "1" * 100_000,
        "a" + " " * 100_000,
        "a[b=" + "c " * 50_000,
        "a[b=c" + " " * 100_000 + "]",
        "a[" + ",".join(f"b{i}=1" for i in range(15_000)) + "]",
        "a" + "+b" * 50_000,
        "(" * 100_000,
    ],
    ids=lambda text: text[:6],
)
def test_a_hundred_thousand_characters_take_no_time(text):
    try:
        config = parse(text)
    except ConfigError as error:
        assert_points_into(text, str(error))
    else:
        assert parse(str(config)) == config


def test_the_examples_of_the_design():
    """DESIGN 5, word for word."""
    assert parse("A1R2K13(kri-d-kv-sum)+xa25") == RoutingConfig(
        A1R2K13, scorer=PluginRef("kri-d-kv-sum"), repairs=(PluginRef("xa25"),)
    )
    assert parse("A1R2K13+xa25") == RoutingConfig(A1R2K13, repairs=(PluginRef("xa25"),))
    assert parse("A0R0K16(eigen~mmr[weight=0.7])") == RoutingConfig(
        PluginRef("tag", {"anchor": 0, "recent": 0, "mid": 16}),
        scorer=PluginRef("eigen"),
        selector=PluginRef("mmr", {"weight": 0.7}),
    )
    assert parse("hybrid[anchor=4,recent=12]") == RoutingConfig(
        PluginRef("hybrid", {"anchor": 4, "recent": 12})
    )
    assert parse("recency[budget=16]") == RoutingConfig(PluginRef("recency"), budget=16)
    assert parse("A1R2K13(random[seed=3])").scorer == PluginRef("random", {"seed": 3})
    assert parse("A0R0K16(~random-middle[anchor=1,recent=2,seed=3])") == RoutingConfig(
        PluginRef("tag", {"anchor": 0, "recent": 0, "mid": 16}),
        selector=PluginRef("random-middle", {"anchor": 1, "recent": 2, "seed": 3}),
    )


@pytest.mark.parametrize(
    "text",
    [
        "A1R2K13(kri-d-kv-sum)+xa25",
        "A1R2K13+xa25",
        "A0R0K16(eigen~mmr[weight=0.7])",
        "hybrid[anchor=4,recent=12]",
        "recency[budget=16]",
        "A1R2K13(random[seed=3])",
        "A0R0K16(~random-middle[anchor=1,recent=2,seed=3])",
    ],
)
def test_the_examples_of_the_design_are_canonical(text):
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("a01r2K013", "A1R2K13"),
        ("A1R2K13(~topk)", "A1R2K13"),
        ("A1R2K13()", "A1R2K13"),
        ("tag[mid=13,anchor=1,recent=02]", "A1R2K13"),
        ("tag[mid=13,anchor=1,recent=2,budget=16]", "A1R2K13"),
        ("recency[budget=016]", "recency[budget=16]"),
        (" A1R2K13 ( KRI_D_KV_SUM ) + XA25 ", "A1R2K13(kri-d-kv-sum)+xa25"),
        ("A1R2K13(Kri_Plugin.Eigen:eigen)", "A1R2K13(kri-plugin-eigen:eigen)"),
        ("A1R2K13 :tag", "a1r2k13:tag"),
        ("A1R2K13.5", "a1r2k13.5"),
        ("kri-core:tag[anchor=1,mid=3,recent=2]", "kri-core:tag[anchor=1,mid=3,recent=2]"),
        ("other:tag[budget=4]", "other:tag[budget=4]"),
        ("x[on=True]", "x[on=True]"),
    ],
)
def test_the_canonical_string(written, canonical):
    assert str(parse(written)) == canonical


def test_the_budget_of_a_tag_is_the_sum_of_its_three_numbers():
    assert parse("A1R2K13").budget == 16
    assert parse("A0R0K0").budget == 0
    assert RoutingConfig(A1R2K13, budget=16).budget == 16
    assert parse("other:tag[anchor=9]").budget is None


def test_a_budget_beside_a_tag_must_be_its_own():
    wanted = "a budget of 17 was given beside A1R2K13, which has budget 16; give one, or make"
    with pytest.raises(ConfigError, match=wanted):
        RoutingConfig(A1R2K13, budget=17)
    with pytest.raises(
        ConfigError, match=r"a budget of 4 was given beside .*, which has budget 16"
    ):
        parse("tag[anchor=1,recent=2,mid=13,budget=4]")


def test_a_budget_given_twice_must_be_the_same():
    split = PluginRef("recency", {"budget": 16})

    assert RoutingConfig(split, budget=16) == parse("recency[budget=16]")
    with pytest.raises(ConfigError, match=r"17 was given beside recency\[budget=16\], which has b"):
        RoutingConfig(split, budget=17)


@pytest.mark.parametrize("budget", [-1, 4.0, True, "many", 10**9, "\uff11\uff16"])
def test_a_budget_is_a_whole_number_of_blocks(budget):
    wanted = f"budget={budget} is not a whole number of blocks; write budget=16"
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        RoutingConfig(PluginRef("recency"), budget=budget)


def test_a_python_value_is_spelled_as_a_stack_spells_it():
    assert str(PluginRef("x", {"on": True, "w": 0.5, "n": 3})) == "x[n=3,on=true,w=0.5]"


@pytest.mark.parametrize(
    ("text", "said", "at"),
    [
        ("", "expected a split such as A1R2K13 or recency[budget=16], got the end", 0),
        ("  ", "expected a split such as A1R2K13 or recency[budget=16], got the end", 2),
        ("(eigen)", "expected a split such as A1R2K13 or recency[budget=16], got '('", 0),
        ("A1R2", "'A1R2' is not a split tag; write A<anchor>R<recent>K<mid>, such as A1R2K13", 0),
        ("K13R2A1", "'K13R2A1' is not a split tag; write A<anchor>R<recent>K<mid>, such as", 0),
        ("A1R2K1234567890", "'A1R2K1234567890' is not a split tag; write A<anchor>", 0),
        ("A1R2K13 K13", "'K13' does not belong here; after the split come (scorer~selector)", 8),
        ("A1R2K13[budget=16]", "'[budget=16]' does not belong here; after the split come", 7),
        ("A1R2K13(eigen", "expected ')' to close the scorer and selector, got the end", 13),
        ("A1R2K13(a b)", "expected ')' to close the scorer and selector, got 'b'", 10),
        ("A1R2K13(~)", "expected a selector, got ')'", 9),
        ("A1R2K13(-)", "expected a scorer, got '-'", 8),
        ("A1R2K13(A1R2K13)", "expected a scorer, got a split tag; a tag stands first", 8),
        ("A1R2K13-", "'-' does not belong here; after the split come", 7),
        ("A1R2K13+", "expected a repair, got the end", 8),
        ("x:", "expected a split such as", 2),
        ("x[", "expected a parameter name, got the end", 2),
        ("x[a]", "expected '=' and a value after 'a', got ']'", 3),
        ("x[a=]", "expected a value for 'a', got ']'", 4),
        ("x[a=1", "expected ']' to close the parameters, got the end", 5),
        ("x[a=1,a=2]", "parameter 'a' is given twice", 6),
        ("x[a=1,,]", "expected a parameter name, got ','", 6),
        ("x[a=b\nc]", "'b\\nc' has characters that cannot be shown", 4),
        (" x[budget=many]", "budget=many is not a whole number of blocks; write budget=16", 1),
        ("tag[mid=-1]", "mid=-1 is not a whole number of blocks; write mid=16", 0),
        ("x" + " y" * 50, "'y y y y y y y y y y y y y y y y y y y y …' does not belong here", 2),
    ],
)
def test_what_cannot_be_read_is_shown_with_a_caret(text, said, at):
    with pytest.raises(ConfigError) as caught:
        parse(text)

    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith(caret(text, at))


def test_a_caret_is_under_its_character_whatever_is_in_the_text():
    assert caret("a\nb", 2) == "\n  a?b\n    ^"


def test_a_lone_scorer_is_read_with_its_parameters_and_nothing_behind_it():
    assert parse_scorer(" KRI_D[b=2,a=1]") == PluginRef("kri-d", {"a": 1, "b": 2})
    with pytest.raises(ConfigError, match=r"'~mmr' does not belong here; a scorer is name\[key=v"):
        parse_scorer("eigen~mmr")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("two words",), "'two words' is not a plugin name; use letters, digits, '-' and '.'"),
        (("",), "'' is not a plugin name"),
        (("A1R2K13",), "'a1r2k13' is no plugin name: a stack would read it as a split tag"),
        (("x", {}, "a b"), "'a b' is not a package name; use letters, digits and '-'"),
        (("x", {"a": ""}), "a='' cannot stand in a stack; write [key=value]"),
        (("x", {"a": "1,2"}), "a='1,2' cannot stand in a stack; write [key=value]"),
        (("x", {"a b": 1}), "a b='1' cannot stand in a stack; write [key=value]"),
        (("x", {"a": "b\nc"}), "a='b\\nc' cannot stand in a stack; write [key=value]"),
        (("x", (("a", 1), ("a", 2))), "parameter 'a' is given twice; keep one"),
    ],
)
def test_a_reference_a_stack_could_not_hold_is_refused(arguments, wanted):
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        PluginRef(*arguments)
