//! The results as one HTML page that needs nothing else: tables, verdicts, figures as SVG.

use std::fmt::Write;

use super::outcome::{Chart, Claim, Outcome, Table, shown};
use super::questions::answers;
use crate::layout::map::svg;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:right}\
td:first-child,th:first-child{text-align:left}.yes{color:#16703a}.no{color:#b3261e;font-weight:bold}\
svg{display:block;margin:1em 0}h2{margin-top:2.5em}.note{color:#555}.why{color:#555;font-size:.9em;padding-left:2em}td.why:first-child{text-align:left}dt{font-weight:bold;margin-top:.6em}";
/// Told apart also without colour.
const COLOURS: [&str; 6] = ["#9aa5b1", "#5b8def", "#e0a030", "#2a7d4f", "#a0522d", "#7a4fbf"];

/// The page.
pub fn page(results: &[(&str, Outcome)]) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>cffs: the papers' experiments</title><style>{STYLE}\
         </style></head><body>\n<h1>The papers' experiments on cffs</h1>\n<p>The engine on simulated disks, in virtual time.</p>\n"
    );
    let all = results.iter().flat_map(|(_, o)| &o.claims);
    let (held, claims) = (all.clone().filter(|c| c.holds()).count(), all.count());
    let _ = writeln!(html, "<p>{held} of {claims} claims and targets are confirmed.</p>");
    html.push_str("<ul>\n");
    for (title, outcome) in results {
        let held = outcome.claims.iter().filter(|c| c.holds()).count();
        let (name, title) = (escape(&outcome.name), escape(title));
        let _ = writeln!(html, "<li><a href=\"#{name}\">{title}</a>: {held} of {}</li>", outcome.claims.len());
    }
    html.push_str("</ul>\n<h2>The eight questions of the thesis of 1998</h2>\n<dl>\n");
    for answer in answers(results) {
        let text = match answer.answer {
            Ok(text) => escape(&text),
            Err(missing) => format!("No figures yet: <code>cffs-lab run {missing}</code>."),
        };
        let _ = writeln!(html, "<dt>{}</dt><dd>{text}</dd>", escape(answer.question));
    }
    html.push_str("</dl>\n");
    for (title, outcome) in results {
        let _ = writeln!(html, "<h2 id=\"{}\">{}</h2>", escape(&outcome.name), escape(title));
        claims_table(&mut html, outcome);
        outcome.charts.iter().for_each(|chart| draw(&mut html, chart));
        outcome.maps.iter().for_each(|map| html.push_str(&svg(&map.title, map.cell, &map.owners)));
        outcome.tables.iter().for_each(|table| figures(&mut html, table));
        for note in &outcome.notes {
            let _ = writeln!(html, "<p class=\"note\">{}</p>", escape(note));
        }
    }
    html.push_str("</body></html>\n");
    html
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
            ratio(claim)
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

/// Ours by the paper's, where that says something.
pub fn ratio(claim: &Claim) -> String {
    match claim.paper > 0.0 && claim.ours >= 0.0 {
        true => shown(claim.ours / claim.paper),
        false => String::new(),
    }
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

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 30.0;

fn draw(html: &mut String, chart: &Chart) {
    let most = highest(chart);
    let step = tick(most);
    let top = (most / step).ceil() * step;
    let plot = HEIGHT - TOP - BOTTOM;
    let y = |value: f64| TOP + plot * (1.0 - value / top);
    let legend = 18.0 * chart.series.len() as f64;
    let _ = writeln!(
        html,
        "<svg viewBox=\"0 0 {WIDTH} {}\" width=\"{WIDTH}\" font-size=\"12\" role=\"img\"><text x=\"{LEFT}\" y=\"16\">{} ({})</text>",
        HEIGHT + legend,
        escape(&chart.title),
        escape(&chart.unit)
    );
    let mut at = 0.0;
    while at <= top * 1.0001 {
        let _ = writeln!(
            html,
            "<line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"#ddd\"/><text x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\">{3}</text>",
            y(at),
            LEFT - 6.0,
            y(at) + 4.0,
            shown(at)
        );
        at += step;
    }
    let cluster = (WIDTH - LEFT) / chart.at.len().max(1) as f64;
    // Names that would run into each other are smaller.
    let longest = chart.at.iter().map(|name| name.chars().count()).max().unwrap_or(1).max(1);
    let size = (cluster / longest as f64 / 0.62).clamp(7.0, 12.0);
    for (i, name) in chart.at.iter().enumerate() {
        let x = LEFT + cluster * (i as f64 + 0.5);
        let _ = writeln!(
            html,
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" font-size=\"{size:.1}\">{}</text>",
            HEIGHT - BOTTOM + 18.0,
            escape(name)
        );
    }
    for (s, (name, values)) in chart.series.iter().enumerate() {
        let colour = COLOURS[s % COLOURS.len()];
        if chart.lines {
            let points: Vec<String> = values
                .iter()
                .enumerate()
                .map(|(i, v)| format!("{:.1},{:.1}", LEFT + cluster * (i as f64 + 0.5), y(*v)))
                .collect();
            let dash = if s % 2 == 1 { " stroke-dasharray=\"6 4\"" } else { "" };
            let _ = writeln!(
                html,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
                points.join(" ")
            );
        } else {
            let bar = cluster * 0.8 / chart.series.len() as f64;
            for (i, v) in values.iter().enumerate() {
                let x = LEFT + cluster * (i as f64 + 0.1) + bar * s as f64;
                let drawn = y(v.min(top));
                let _ = writeln!(
                    html,
                    "<rect x=\"{x:.1}\" y=\"{drawn:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"><title>{}: {}</title></rect>",
                    bar * 0.95,
                    (HEIGHT - BOTTOM - drawn).max(0.5),
                    escape(name),
                    shown(*v)
                );
                // Cut off: the figure stands above it, or in it where it is narrow.
                if *v > top {
                    let (wide, middle) = (bar * 0.95, x + bar * 0.48);
                    let at = match bar > 30.0 {
                        true => format!("x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\"", TOP - 3.0),
                        false => format!(
                            "transform=\"translate({:.1} {:.1}) rotate(-90)\" text-anchor=\"end\" fill=\"#fff\"",
                            middle + 3.5,
                            TOP + 20.0
                        ),
                    };
                    let _ = writeln!(
                        html,
                        "<path d=\"M{x:.1} {:.1}l{wide:.1} -6v4l-{wide:.1} 6z\" fill=\"#fff\"/><text {at} font-size=\"10\">{}</text>",
                        TOP + 14.0,
                        shown(*v)
                    );
                }
            }
        }
        let line = HEIGHT + 18.0 * s as f64;
        let _ = writeln!(
            html,
            "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"{:.1}\">{}</text>",
            line - 2.0,
            LEFT + 18.0,
            line + 8.0,
            escape(name)
        );
    }
    html.push_str("</svg>\n");
}

/// The highest value that is drawn. A cluster of bars that would make those of all others invisible is cut off.
fn highest(chart: &Chart) -> f64 {
    let mut most: Vec<f64> = (0..chart.at.len())
        .map(|i| chart.series.iter().filter_map(|(_, v)| v.get(i)).copied().fold(0.0, f64::max))
        .collect();
    most.sort_by(f64::total_cmp);
    let (last, before) = (most.pop().unwrap_or(0.0), most.pop().unwrap_or(0.0));
    let drawn = if !chart.lines && before > 0.0 && last > 4.0 * before { before * 1.1 } else { last };
    drawn.max(1e-9)
}

/// A round distance between lines, so that there are four to ten of them.
fn tick(most: f64) -> f64 {
    let power = 10f64.powf((most / 5.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|f| f * power).find(|step| most / step <= 8.0).unwrap_or(power * 10.0)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_hides_the_others_is_cut_off() {
        let chart = |values: Vec<f64>, lines| Chart {
            title: String::new(),
            unit: String::new(),
            lines,
            at: values.iter().map(|_| "x".to_string()).collect(),
            series: vec![("a".into(), values)],
        };
        assert_eq!(highest(&chart(vec![1.0, 3.0], false)), 3.0);
        assert_eq!(highest(&chart(vec![1.0, 100.0], true)), 100.0);
        let cut = chart(vec![10.0, 700.0, 2.0], false);
        assert_eq!(highest(&cut), 11.0);
        let mut html = String::new();
        draw(&mut html, &cut);
        assert!(html.contains(">700</text>"), "{html}");
    }
}
