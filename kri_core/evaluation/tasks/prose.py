"""Filler prose: grammatical, dull, endless, without the names that needles are about."""

from __future__ import annotations

from collections.abc import Iterator

from kri_core.evaluation.tasks.draws import Draws


def choices(text: str) -> tuple[str, ...]:
    """Words to choose from, written with | between."""
    return tuple(text.split("|"))


NAMES = choices(
    "Alice|Anna|Ben|Brian|Bruno|Carol|Charles|Clara|Daniel|David|Diana|Edward|Emma|Eric|Felix"
    "|Frank|George|Grace|Hannah|Helen|Henry|Isaac|Jack|James|Jane|Julia|Karen|Kate|Kevin|Laura"
    "|Linda|Lucy|Margaret|Maria|Mark|Martin|Michael|Nancy|Nina|Oliver|Oscar|Paul|Peter|Philip"
    "|Quinn|Rachel|Robert|Rose|Ruth|Sarah|Simon|Susan|Thomas|Victor|Walter|William"
)  # one token each for the embedded model's tokenizer
SUBJECTS = choices(
    "The gardener|The old baker|A young painter|The librarian|The ferry captain|A tired nurse"
    "|The clockmaker|The music teacher|A quiet tailor|The village doctor|The postman"
    "|A visiting student|The shepherd|The innkeeper|A careful carpenter|The beekeeper"
    "|The lighthouse keeper|A retired judge|The fisherman|The night guard"
)
VERBS = choices(
    "carried|repaired|painted|cleaned|described|borrowed|found|examined|moved|sold|watched"
    "|remembered|hid|collected|measured|admired|wrapped|opened|drew|counted"
)
OBJECTS = choices(
    "the wooden boat|a basket of apples|the broken clock|an old map|the heavy curtains"
    "|a pair of boots|the copper kettle|a stack of letters|the garden bench|a small lantern"
    "|the stone wall|a bundle of wool|the empty bottles|a painted chair|the iron gate"
    "|a loaf of bread|the tall ladder|a woollen coat|the silver spoons|a jar of honey"
)
PLACES = choices(
    "near the river|behind the church|in the market square|at the edge of the forest"
    "|beside the old mill|under the bridge|in the narrow street|on the hill|by the harbour"
    "|in the orchard|outside the station|in the quiet courtyard|along the canal|near the windmill"
    "|in the back room|at the end of the lane|beside the fountain|in the barn|on the terrace"
    "|close to the school"
)
TIMES = choices(
    "before sunrise|in the early morning|after breakfast|around noon|in the late afternoon"
    "|at dusk|after supper|during the storm|on a cold evening|at the end of summer"
    "|when the bells rang|while it rained|before the first snow|on market day"
    "|during the holidays|in the middle of the night|after a long walk|when the fog lifted"
    "|at harvest time|on the way home"
)
SECONDS = choices(
    "Nobody noticed it at the time|The weather stayed mild for days|It took longer than expected"
    "|The neighbours talked about it for weeks|Later everything was put back in order"
    "|A light wind came from the west|The dogs slept through it all|There was no hurry at all"
    "|The children watched from a window|Somebody had left the door open"
    "|The road was almost empty|It had been planned since the spring"
    "|Everyone agreed that it was well done|The smell of smoke hung in the air"
    "|A few leaves fell from the trees|The work was harder than it looked"
    "|That was how things were done there|In the distance a train went by"
    "|The lamps had not been lit yet|Only the cat seemed to mind"
)
SECOND = 3  # one sentence in so many is followed by a second one


def sentences(draws: Draws) -> Iterator[str]:
    """Sentences without end, each with the space before it."""
    while True:
        parts = (draws.one(words) for words in (SUBJECTS, VERBS, OBJECTS, PLACES, TIMES))
        yield f" {' '.join(parts)}."
        if draws.below(SECOND) == 0:
            yield f" {draws.one(SECONDS)}."
