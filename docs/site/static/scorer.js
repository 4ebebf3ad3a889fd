// How search results are ordered. Sphinx's own numbers, but what explains the past (decisions, the changelog, how it is
// tested) comes after what explains the present.
var Scorer = {
  score: ([page, title, anchor, description, score]) =>
    /^(docs\/adr\/|docs\/internals\/|CHANGELOG|benchmarks\/)/.test(page) ? score - 20 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
