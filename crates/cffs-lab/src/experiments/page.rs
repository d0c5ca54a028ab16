//! The results as one HTML page that needs nothing else: tables, verdicts, figures as SVG.

use std::fmt::Write;

use super::chart::{FULL, draw, escape};
use super::opening::pictures;
use super::outcome::{Outcome, Table, shown};
use super::questions::answers;
use super::results::Results;
use crate::layout::map::svg;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:right}\
td:first-child,th:first-child{text-align:left}.yes{color:#16703a}.no{color:#b3261e;font-weight:bold}\
svg{display:block;margin:1em 0}h2{margin-top:2.5em}.note{color:#555}.why{color:#555;font-size:.9em;padding-left:2em}td.why:first-child{text-align:left}dt{font-weight:bold;margin-top:.6em}\
.opening{display:grid;grid-template-columns:repeat(3,1fr);gap:0 1.5em;width:min(94vw,80em);margin-left:calc(50% - min(47vw,40em))}\
figure{margin:0}figure svg{width:100%;height:auto;margin:.3em 0}figcaption{font-size:.9em;min-height:4.5em}@media(max-width:50em){.opening{grid-template-columns:1fr}}";

/// The page: pictures for somebody who has a minute, verdicts, the thesis's questions, then every experiment.
pub fn page(results: &[(&str, Outcome)]) -> String {
    let all = results.iter().flat_map(|(_, o)| &o.claims);
    let (held, claims) = (all.clone().filter(|c| c.holds()).count(), all.count());
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>cffs: the papers' experiments</title><style>{STYLE}\
         </style></head><body>\n<h1>The papers' experiments on cffs</h1>\n<p>cffs keeps the inode in \
         the directory entry and the files of a directory next to each other, and moves them as one unit. This page has what that is worth: the engine \
         on simulated disks, in virtual time. \
         {held} of {claims} claims and targets are confirmed.</p>\n"
    );
    pictures(&mut html, Results(results));
    html.push_str("<h2>The experiments</h2>\n<ul>\n");
    for (title, outcome) in results {
        let held = outcome.claims.iter().filter(|c| c.holds()).count();
        let (name, title) = (escape(&outcome.name), escape(title));
        let _ = writeln!(html, "<li><a href=\"#{name}\">{title}</a>: {held} of {}</li>", outcome.claims.len());
    }
    html.push_str("</ul>\n");
    questions(&mut html, results);
    results.iter().for_each(|(title, outcome)| experiment(&mut html, title, outcome));
    html.push_str("</body></html>\n");
    html
}

fn questions(html: &mut String, results: &[(&str, Outcome)]) {
    html.push_str("<h2>The eight questions of the thesis of 1998</h2>\n<dl>\n");
    for answer in answers(results) {
        let text = match answer.answer {
            Ok(text) => escape(&text),
            Err(missing) => format!("No figures yet: <code>cffs-lab run {missing}</code>."),
        };
        let _ = writeln!(html, "<dt>{}</dt><dd>{text}</dd>", escape(answer.question));
    }
    html.push_str("</dl>\n");
}

fn experiment(html: &mut String, title: &str, outcome: &Outcome) {
    let _ = writeln!(html, "<h2 id=\"{}\">{}</h2>", escape(&outcome.name), escape(title));
    claims_table(html, outcome);
    outcome.charts.iter().for_each(|chart| draw(html, chart, FULL));
    outcome.maps.iter().for_each(|map| html.push_str(&svg(&map.title, map.cell, &map.owners)));
    outcome.tables.iter().for_each(|table| figures(html, table));
    for note in &outcome.notes {
        let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(note));
    }
}

fn claims_table(html: &mut String, outcome: &Outcome) {
    html.push_str(
        "<table>\n<tr><th>claim</th><th>paper or target</th><th>ours</th><th>ratio</th><th>verdict</th></tr>\n",
    );
    for claim in &outcome.claims {
        let (class, verdict) = if claim.holds() { ("yes", "confirmed") } else { ("no", "not confirmed") };
        let sign = if claim.smaller { "&le; " } else { "&ge; " };
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{sign}{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{verdict}</td></tr>",
            escape(&claim.text),
            shown(claim.paper),
            shown(claim.ours),
            claim.ratio()
        );
        if !claim.holds() {
            let why = claim.why.as_deref().unwrap_or("the cause is not known yet");
            let _ = writeln!(html, "<tr><td colspan=\"5\" class=\"why\">{}</td></tr>", escape(why));
        }
    }
    for (claim, why) in &outcome.untested {
        let (claim, why) = (escape(claim), escape(why));
        let _ = writeln!(html, "<tr><td>{claim}</td><td></td><td></td><td></td><td>not tested: {why}</td></tr>");
    }
    html.push_str("</table>\n");
}

fn figures(html: &mut String, table: &Table) {
    let _ = writeln!(html, "<h3>{}</h3>\n<table>", escape(&table.title));
    let heads: String = table.columns.iter().map(|c| format!("<th>{}</th>", escape(c))).collect();
    let _ = writeln!(html, "<tr>{heads}</tr>");
    for (name, values) in &table.rows {
        let cells: String = values.iter().map(|v| format!("<td>{}</td>", shown(*v))).collect();
        let _ = writeln!(html, "<tr><td>{}</td>{cells}</tr>", escape(name));
    }
    html.push_str("</table>\n");
}
