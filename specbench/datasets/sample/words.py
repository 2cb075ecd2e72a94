"""The grammar of the sample's reports: symbols to the phrases that may stand for them."""

import random
import re

SYMBOL = re.compile(r"\{(\w+)\}")

THEMES: tuple[dict[str, str], ...] = (
    {"site": "reservoir", "thing": "sluice gate", "unit": "megalitres", "user": "farmers",
     "programme": "Upland Water Storage Programme", "worker": "gauge keepers"},
    {"site": "ferry landing", "thing": "mooring winch", "unit": "crossings", "user": "islanders",
     "programme": "Coastal Ferry Renewal Scheme", "worker": "deck crews"},
    {"site": "branch library", "thing": "reading room", "unit": "loans", "user": "readers",
     "programme": "Rural Libraries Fund", "worker": "librarians"},
    {"site": "weather station", "thing": "wind mast", "unit": "readings", "user": "forecasters",
     "programme": "Highland Observation Network", "worker": "observers"},
    {"site": "forest nursery", "thing": "seed store", "unit": "saplings", "user": "woodland owners",
     "programme": "Hillside Replanting Plan", "worker": "nursery hands"},
    {"site": "clinic", "thing": "vaccine refrigerator", "unit": "visits", "user": "patients",
     "programme": "Travelling Clinics Initiative", "worker": "nurses"},
    {"site": "fish market", "thing": "ice plant", "unit": "crates", "user": "skippers",
     "programme": "Harbour Markets Reform", "worker": "inspectors"},
    {"site": "rail depot", "thing": "turntable", "unit": "wagons", "user": "freight customers",
     "programme": "Branch Line Recovery Project", "worker": "fitters"},
    {"site": "school kitchen", "thing": "bread oven", "unit": "meals", "user": "pupils",
     "programme": "Warm Lunch Partnership", "worker": "cooks"},
    {"site": "bridge", "thing": "expansion joint", "unit": "vehicles", "user": "hauliers",
     "programme": "County Bridges Survey", "worker": "engineers"},
)  # fmt: skip

PLACES = (
    "Aldermoor", "Ashcombe", "Birchover", "Brackwater", "Calder's Reach", "Coldspring", "Drakelow",
    "Dunmarrow", "Eastlow", "Elmstead", "Farrowick", "Fennimore", "Glenhaven", "Harrowgate",
    "Inverlay", "Juniper Falls", "Kestrel Bay", "Longmere", "Marrowdale", "Northwold", "Oakhollow",
    "Pennard", "Quillan", "Ravensby", "Saltmarsh", "Thornley", "Upper Wray", "Vailmont",
    "Westerby", "Yarrowfield",
)  # fmt: skip
SURNAMES = (
    "Abara", "Brandt", "Castellanos", "Dimitrov", "Ekström", "Fairweather", "Grzybowski", "Hollis",
    "Ibarra", "Jansson", "Kowalczyk", "Lindqvist", "Mbeki", "Nakagawa", "Okafor", "Pettersen",
    "Quispe", "Rahman", "Sorensen", "Tanaka", "Underwood", "Vasquez", "Whitcombe", "Yilmaz",
    "Zielinski",
)  # fmt: skip

GRAMMAR: dict[str, tuple[str, ...]] = {
    "sentence": (
        "{history}", "{cost}", "{staff}", "{measure}", "{complaint}", "{weather}", "{contrast}",
        "{advice}", "{quote}", "{cause}", "{method}", "{plan}",
    ),
    "history": (
        "{The_first} {thing} at {place} was {built} in {old_year}, when {person} {led} the "
        "district office, and it {lasted} until {event}.",
        "Before {old_year} the people of {place} {relied}, which {drawback}.",
        "Records kept at {place} since {old_year} show that {event} changed how the {site} was "
        "{run}.",
        "{person}, who {led} the work at {place} for {small} years, {remembered} that {event}.",
    ),
    "cost": (
        "Spending at {place} came to {money} in {year}, of which {percent} percent went to "
        "{purpose}.",
        "The {site} at {place} {overspent} its budget by {money}, {reason}.",
        "For every {unit_price} spent on {purpose}, {place} recorded {count} {unit}; {place} "
        "managed {count} for the same sum.",
        "Of the {money} set aside for {purpose}, only {percent} percent had been {spent} by "
        "{month} {year}.",
    ),
    "staff": (
        "{place} employs {small} {worker}, {small} fewer than in {year}, and {consequence}.",
        "When {person} left in {month} {year}, nobody at {place} {knew}, so {consequence}.",
        "New {worker} receive {small} days of training at {place}, where {person} teaches them to "
        "{skill}.",
    ),
    "measure": (
        "The {site} at {place} handled {count} {unit} in {year}, {compared} the year before.",
        "Between {month} and {month} of {year}, {place} reported {count} {unit}, while its own "
        "ledgers {ledger}.",
        "Counted over {small} seasons, the yield at {place} {trend}, and {person} traced this to "
        "{origin}.",
    ),
    "complaint": (
        "{user_cap} near {place} complained {often} about {nuisance}; the office answered "
        "{small} of their {hundred} letters.",
        "A petition from {place}, signed by {hundred} {user}, asked for {wish}.",
        "Among the {user} we asked at {place}, {percent} percent said that {opinion}.",
    ),
    "weather": (
        "A storm in {month} {year} {damaged} the {thing} at {place}, and repairs took {small} "
        "weeks because {obstacle}.",
        "The {season} of {year} was the {driest} that {place} had known, so the {site} {coped}.",
    ),
    "contrast": (
        "While {place} {did_well}, {place} {did_badly}, although both had {shared}.",
        "{place} and {place} were given the same {thing}, yet {contrast_end}.",
        "Unlike {place}, which {did_well}, the {site} at {place} {did_badly}.",
    ),
    "advice": (
        "We advise the district office to {action} before {month} {year}, since {benefit}.",
        "{person} proposed to {action} at {place}; the board {verdict}.",
        "If the board were to {action}, {place} would gain {small} {unit} a day, by our estimate.",
    ),
    "quote": (
        '"{spoken}," {person} told us at {place}, "{spoken_more}."',
        'A note in the log of {place} for {month} {year} reads: "{spoken}."',
    ),
    "cause": (
        "The delay at {place} had {small} causes, and the gravest was that {obstacle}.",
        "Because {obstacle}, the {worker} of {place} {workaround}.",
        "{origin_cap} explained most of the losses at {place}; {origin} explained the rest.",
    ),
    "method": (
        "For this chapter we visited {place} {small} times, read {hundred} pages of its log, and "
        "spoke with {person}.",
        "Our figures for {place} leave out {month} {year}, {reason}.",
    ),
    "plan": (
        "From {month} {year} on, {place} is to {action}, for which {money} has been promised.",
        "The plan that {person} drew up for {place} foresees {wish} and, later, {wish}.",
    ),
    "The_first": ("The first", "The oldest", "An earlier", "The largest", "A second"),
    "built": ("built", "installed", "paid for by subscription", "bought second-hand", "moved in"),
    "led": ("directed", "supervised", "was in charge of", "ran", "oversaw"),
    "lasted": ("served", "stood unused", "was patched again and again", "worked without fault"),
    "run": ("run", "staffed", "funded", "inspected", "supplied"),
    "relied": (
        "relied on a private contractor", "shared one {thing} with {place}",
        "carried everything by cart", "paid a yearly fee to {place}", "kept no accounts at all",
    ),
    "drawback": (
        "cost them dearly in wet years", "left {user} waiting for days",
        "worked well enough until {event}", "nobody thought strange at the time",
    ),
    "event": (
        "the mill closed", "the county borders were redrawn", "a flood carried off the footbridge",
        "the railway reached {place}", "a new road opened to {place}",
        "the price of copper doubled", "the old manager retired",
        "an audit found two sets of books",
        "electric pumps replaced the steam engine", "the harbour silted up",
    ),
    "remembered": ("remembered", "wrote later", "told the inquiry", "denied", "confirmed"),
    "overspent": ("overspent", "stayed under", "met, for once,", "twice exceeded"),
    "reason": (
        "mainly because {obstacle}", "although {event}", "as its manager had foreseen",
        "for reasons that the ledgers don't give", "after {event}",
        "since two invoices were paid twice", "because the meters were being replaced",
    ),
    "purpose": (
        "spare parts", "night shifts", "fuel", "new roofing", "training", "insurance", "surveys",
        "the {thing}", "legal advice", "fencing and locks", "a second access road",
    ),
    "spent": ("spent", "claimed", "paid out", "accounted for"),
    "consequence": (
        "the {thing} stood idle on Sundays", "evening hours were given up",
        "{place} lent two people each {season}", "the books were closed a month late",
        "letters went unanswered", "{user} learned to help themselves", "inspections lapsed",
    ),
    "knew": (
        "knew how to reset the {thing}", "had a key to the archive", "could read the old plans",
        "dared to sign the orders",
    ),
    "skill": (
        "read a worn gauge", "balance a ledger by hand", "calm impatient {user}",
        "take the {thing} apart", "report a fault before it spreads", "refuse a bad delivery",
    ),
    "compared": (
        "{percent} percent more than", "slightly fewer than", "about as many as",
        "less than half of", "a third above",
    ),
    "ledger": (
        "show {count}", "list {small} days without any entry", "agree to the last digit",
        "were lost in the move to {place}",
    ),
    "trend": (
        "rose by {percent} percent", "fell in all but one", "hardly moved", "doubled and fell back",
        "followed the price of fuel",
    ),
    "origin": (
        "leaking seals", "late deliveries", "a change of supplier", "the new timetable",
        "unpaid overtime", "better records", "a misplaced decimal point", "theft",
        "shorter winters", "the merger with {place}",
    ),
    "origin_cap": (
        "Leaking seals", "Late deliveries", "A change of supplier", "Poor lighting",
        "A faulty thermometer", "Rounding in the returns", "Bad roads",
    ),
    "user_cap": ("Residents", "Shopkeepers", "Parents", "Small firms", "Visitors"),
    "often": ("repeatedly", "twice", "every spring", "without success", "in writing"),
    "nuisance": (
        "noise at dawn", "the queue at the gate", "wrong bills", "a smell of diesel",
        "the locked side entrance", "early closing", "muddy water",
    ),
    "wish": (
        "longer opening hours", "a second {thing}", "a covered waiting area", "monthly reports",
        "lower fees in {season}", "a direct line to {place}", "an independent auditor",
    ),
    "opinion": (
        "the {site} had become more reliable", "fees were too high for what they got",
        "they would rather travel to {place}", "nobody had ever asked them before",
        "the {worker} were helpful but too few",
    ),
    "season": ("spring", "summer", "autumn", "winter"),
    "damaged": ("tore off", "flooded", "cracked", "buried", "bent"),
    "driest": ("driest", "coldest", "longest", "stormiest", "mildest"),
    "coped": (
        "closed for {small} weeks", "sent its {worker} to {place}", "ran at a third of capacity",
        "took in twice its usual load", "had to borrow fuel",
    ),
    "obstacle": (
        "the only crane was in {place}", "no contractor would bid", "parts had to be cast anew",
        "the permit lay on a desk for {small} months",
        "two departments disagreed on who should pay", "the drawings did not match the building",
        "the supplier had gone bankrupt",
    ),
    "did_well": (
        "finished {small} months early", "cut its costs by {percent} percent",
        "published every figure we asked for", "kept its {worker} through the hard years",
        "answered complaints within {small} days",
    ),
    "did_badly": (
        "lost a third of its {worker}", "spent {money} on advice it never used",
        "could not say where {count} {unit} had gone", "missed {small} inspections in a row",
        "let the {thing} rust",
    ),
    "shared": ("the same manager", "equal funds", "the same supplier", "new buildings"),
    "contrast_end": (
        "only the first put it to use", "the second wore it out in {small} years",
        "repairs cost {money} in one and nothing in the other", "{user} preferred the older one",
    ),
    "action": (
        "publish its accounts each quarter", "replace the {thing}", "hire {small} {worker}",
        "merge the stores of {place} and {place}", "test the {thing} each {season}",
        "end the contract with its carrier", "move the archive to {place}", "charge by weight",
    ),
    "benefit": (
        "it would save {money} a year", "{user} have waited long enough",
        "the present rule rewards delay", "{place} has shown that it works",
        "a further winter might ruin the {thing}",
    ),
    "verdict": (
        "agreed within a week", "asked for a second opinion", "refused by {small} votes to {small}",
        "has not replied", "agreed, but struck out the funds",
    ),
    "spoken": (
        "We counted by lamplight and got it wrong", "Nobody reads the returns we send",
        "The {thing} was never the problem", "I would do it again, but slowly",
        "One good mechanic is worth three committees",
        "They closed the road and told us afterwards",
        "You can hear it fail long before you see it",
    ),
    "spoken_more": (
        "and the board knew that in {year}", "whatever the report of {year} may claim",
        "so we wrote our own rules", "and {place} paid for it", "though I can't prove it",
    ),
    "workaround": (
        "kept a second set of tools at home", "met at dawn to share out the work",
        "sent samples to {place} by bus", "wrote to the newspaper",
        "bought parts with their own money",
    ),
    "month": (
        "January", "February", "March", "April", "May", "June", "July", "August", "September",
        "October", "November", "December",
    ),
}  # fmt: skip


class Writer:
    """Writes sentences about one programme from the grammar.

    Parameters
    ----------
    rng : random.Random
    theme : dict of str to str
        The programme's own words: site, thing, unit, user, worker.
    places : sequence of str
        The places that the report is about.
    """

    def __init__(self, rng: random.Random, theme: dict[str, str], places: list[str]) -> None:
        self.rng = rng
        self._theme = theme
        self._places = places
        self._recent: list[str] = []

    def sentence(self) -> str:
        """One sentence; the kind and the place differ from those just before it."""
        text = self.expand("{sentence}")
        return text[0].upper() + text[1:]

    def expand(self, template: str) -> str:
        """`template` with every symbol in braces replaced, down to plain words."""
        return SYMBOL.sub(lambda match: self._fill(match.group(1)), template)

    def _fill(self, symbol: str) -> str:
        rng = self.rng
        if symbol in self._theme:
            return self._theme[symbol]
        if symbol == "place":
            return self._fresh(self._places)
        if symbol == "person":
            return f"{self._fresh(('Ms', 'Mr', 'Dr'), 1)} {self._fresh(SURNAMES)}"
        if symbol in _NUMBERS:
            return _NUMBERS[symbol](rng)
        return self.expand(self._fresh(GRAMMAR[symbol]))

    def _fresh(self, options: "tuple[str, ...] | list[str]", memory: int = 40) -> str:
        """One of `options` that was not among the last choices, as far as there is one."""
        recent = self._recent[-memory:]
        unused = [option for option in options if option not in recent]
        chosen = self.rng.choice(unused or list(options))
        self._recent = [*recent, chosen]
        return chosen


_NUMBERS = {
    "old_year": lambda rng: str(rng.randint(1884, 1979)),
    "year": lambda rng: str(rng.randint(2003, 2023)),
    "percent": lambda rng: str(rng.randint(3, 88)),
    "small": lambda rng: str(rng.randint(2, 19)),
    "hundred": lambda rng: str(rng.randint(41, 960)),
    "count": lambda rng: f"{rng.randint(1100, 98000):,}",
    "money": lambda rng: f"{rng.randint(12, 990)},{rng.randint(0, 99):02d}0 crowns",
    "unit_price": lambda rng: f"{rng.randint(2, 40)}00 crowns",
}
