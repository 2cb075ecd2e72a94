"""GovReport: summaries of long government reports."""

from collections.abc import Mapping
from typing import ClassVar

from specbench.datasets.base import Dataset, Item, PromptParts

HEAD = "Below is a report of a government agency. Read it and then summarise it.\n\n<report>\n"
TAIL = (
    "\n</report>\n\nWrite a summary of the report of about one page, in connected prose. Say what "
    "was examined and why, what was found, and what is recommended; keep the figures that matter."
)


class GovReport(Dataset):
    """Long reports of government agencies and their summaries."""

    name = "govreport"
    summary = "one-page summaries of long government reports"
    hub_id = "ccdv/govreport-summarization"
    hub_configs = ("document",)
    hub_split = "test"
    fields: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "report": ("report",),
        "summary": ("summary",),
    }
    default_thinking = False
    score_name = "ROUGE-L F1"
    sample_fills_context = True

    def parts(self, item: Item, *, cot: bool) -> PromptParts:
        """The report is the body, between the instruction and the call for the summary."""
        return PromptParts(HEAD, item.fields["report"].strip(), TAIL)

    def reference(self, item: Item) -> str:
        """The report's own summary."""
        return str(item.fields["summary"])

    def score(self, item: Item, text: str) -> float:
        """ROUGE-L F1 of the text against the report's summary, words stemmed (rouge-score)."""
        from rouge_score.rouge_scorer import RougeScorer

        scorer = RougeScorer(["rougeL"], use_stemmer=True)
        return float(scorer.score(self.reference(item), text)["rougeL"].fmeasure)
