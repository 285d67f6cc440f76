"""The style of the page of ``segmentlog analyze``: light and dark, wide, narrow, and on paper."""

STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --text: #1b2330; --soft: #5d6879;
  --line: #e2e6ec; --accent: #2f6fd0; --track: #e9edf3; --bad: #c4342b; --warn: #b26a00;
  --note: #5d6879; --c0: #2f6fd0; --c1: #16a085; --c2: #e08e1b; --c3: #8e5bd0; --c4: #d0476c;
  --c5: #8a95a5; }
@media (prefers-color-scheme: dark) { :root { --back: #10141a; --card: #181e27; --text: #e4e9f0;
  --soft: #97a3b4; --line: #2a3340; --accent: #6ea3f2; --track: #262f3c; --bad: #ff7b70;
  --warn: #f0b04c; --note: #97a3b4; --c0: #6ea3f2; --c1: #43c3a7; --c2: #f0b04c; --c3: #b48cf0;
  --c4: #f07f9f; --c5: #6d7a8c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  -webkit-text-size-adjust: 100%; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 25px; line-height: 1.25; margin: 0 0 2px; letter-spacing: -.01em;
  overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 36px 0 10px; letter-spacing: -.005em; }
h3 { font-size: 12px; margin: 0 0 10px; color: var(--soft); font-weight: 600;
  letter-spacing: .05em; text-transform: uppercase; }
p { margin: 0; }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
.soft { color: var(--soft); } .small { font-size: 13px; }
.num, td.r, th.r, dd { font-variant-numeric: tabular-nums; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 16px 18px; min-width: 0; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 12px;
  margin-top: 20px; }
.tiles .card { padding: 12px 16px; }
.tiles b { display: block; font-size: 22px; font-weight: 600; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
.findings { list-style: none; margin: 0; padding: 0; overflow: hidden; }
.findings li { display: grid; grid-template-columns: 84px 1fr auto; gap: 4px 14px;
  padding: 11px 18px; border-top: 1px solid var(--line); }
.findings li:first-child { border-top: 0; }
.findings .what { min-width: 0; overflow-wrap: anywhere; }
.findings .gain { white-space: nowrap; font-variant-numeric: tabular-nums; font-weight: 600; }
.tag { font-size: 12px; font-weight: 600; line-height: 22px; }
.tag::before { content: ""; display: inline-block; width: 8px; height: 8px; border-radius: 50%;
  background: currentColor; margin-right: 7px; }
.problem { color: var(--bad); } .advice { color: var(--warn); } .note { color: var(--note); }
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { font-weight: 600; font-size: 12px; color: var(--soft); text-align: left;
  white-space: nowrap; }
th, td { padding: 7px 10px; border-top: 1px solid var(--line); vertical-align: middle; }
thead th { border-top: 0; padding-top: 0; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
td.r, th.r { text-align: right; white-space: nowrap; }
td.name { overflow-wrap: anywhere; min-width: 110px; font-weight: 500; }
td.bar { width: 22%; min-width: 60px; }
.topic { margin-top: 18px; padding: 0; }
.topic > summary, .topic > .head { padding: 14px 18px; display: flex; flex-wrap: wrap;
  gap: 2px 16px; align-items: baseline; }
.topic > summary { cursor: pointer; list-style-position: inside; }
.topic h2 { margin: 0; overflow-wrap: anywhere; display: inline; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(290px, 1fr));
  border-top: 1px solid var(--line); overflow: hidden; border-radius: 0 0 10px 10px; }
.panel { padding: 16px 18px; min-width: 0; box-shadow: 0 0 0 .5px var(--line); }
.wide { grid-column: 1 / -1; }
dl { display: grid; grid-template-columns: auto 1fr; gap: 3px 14px; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; text-align: right; overflow-wrap: anywhere; }
.meter { display: block; height: 8px; width: 100%; border-radius: 4px; background: var(--track);
  overflow: hidden; } .meter rect { fill: var(--accent); }
.stack { display: block; width: 100%; height: 14px; border-radius: 4px; background: var(--track);
  margin: 2px 0 8px; }
.legend { list-style: none; margin: 0; padding: 0; }
.legend li { display: flex; gap: 8px; align-items: baseline; font-size: 14px; }
.legend span.l { flex: 1; min-width: 0; overflow-wrap: anywhere; }
.dot { width: 9px; height: 9px; border-radius: 2px; flex: none; }
.f0 { fill: var(--c0); } .f1 { fill: var(--c1); } .f2 { fill: var(--c2); } .f3 { fill: var(--c3); }
.f4 { fill: var(--c4); } .f5 { fill: var(--c5); }
.b0 { background: var(--c0); } .b1 { background: var(--c1); } .b2 { background: var(--c2); }
.b3 { background: var(--c3); } .b4 { background: var(--c4); } .b5 { background: var(--c5); }
.hist { display: block; width: 100%; height: 64px; margin-top: 12px; }
.hist rect { fill: var(--accent); }
.axis { display: flex; justify-content: space-between; font-size: 12px; color: var(--soft);
  border-top: 1px solid var(--line); padding-top: 3px; font-variant-numeric: tabular-nums; }
.keys { margin-top: 12px; } .keys td { padding: 4px 8px; font-size: 13px; }
time { white-space: nowrap; }
.gap { height: 10px; } .source { margin-top: 8px; }
.findings.card { padding: 0; }
code { font: 12.5px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  overflow-wrap: anywhere; }
details.rows { padding: 12px 18px; }
details.rows > summary { cursor: pointer; color: var(--accent); }
details.rows .scroll { margin-top: 12px; }
footer { margin-top: 36px; color: var(--soft); font-size: 13px; }
@media (max-width: 620px) {
  main { padding: 18px 12px 40px; } h1 { font-size: 21px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 10px; }
  .tiles .card:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .findings li { grid-template-columns: 1fr auto; padding: 11px 14px; }
  .findings .what { grid-column: 1 / -1; grid-row: 2; }
  .card, .panel { padding: 14px; } .topic { padding: 0; }
  .topic > summary, .topic > .head, details.rows { padding: 12px 14px; }
  .wideonly { display: none; }
  th, td { padding: 7px 6px; }
}
@media print { body { background: none; } .card { break-inside: avoid; } }
"""
