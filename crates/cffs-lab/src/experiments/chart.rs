//! A chart as SVG: bars in clusters, or lines.

use std::fmt::Write;

use super::outcome::{Chart, shown};

/// Told apart also without colour.
const COLOURS: [&str; 6] = ["#9aa5b1", "#5b8def", "#e0a030", "#2a7d4f", "#a0522d", "#7a4fbf"];
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 30.0;
/// Height of a line of the legend.
const LEGEND: f64 = 18.0;

/// Width and height of a chart without its legend, in pixels.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
}

/// As wide as the page.
pub const FULL: Size = Size { width: 760.0, height: 300.0 };
/// One of three in a row.
pub const THIRD: Size = Size { width: 400.0, height: 210.0 };

/// Appends the chart to a page.
pub fn draw(html: &mut String, chart: &Chart, size: Size) {
    let plot = Plot::new(chart, size);
    let Size { width, height } = size;
    let _ = writeln!(
        html,
        "<svg viewBox=\"0 0 {width} {}\" width=\"{width}\" font-size=\"12\" role=\"img\"><text x=\"{}\" y=\"16\">{} ({})</text>",
        height + LEGEND * chart.series.len() as f64,
        if size.width < FULL.width { 0.0 } else { LEFT },
        escape(&chart.title),
        escape(&chart.unit)
    );
    plot.grid(html);
    plot.names(html);
    for (s, (name, values)) in chart.series.iter().enumerate() {
        if chart.lines {
            plot.line(html, s, values);
        } else {
            plot.bars(html, s, name, values);
        }
        plot.legend(html, s, name);
    }
    html.push_str("</svg>\n");
}

/// A chart's scale.
struct Plot<'a> {
    chart: &'a Chart,
    size: Size,
    /// Value at the upper edge.
    top: f64,
    /// Distance of the lines across.
    step: f64,
    /// Width of a cluster.
    cluster: f64,
}

impl Plot<'_> {
    fn new(chart: &Chart, size: Size) -> Plot<'_> {
        let most = highest(chart);
        let step = tick(most);
        let cluster = (size.width - LEFT) / chart.at.len().max(1) as f64;
        Plot { chart, size, top: (most / step).ceil() * step, step, cluster }
    }

    fn y(&self, value: f64) -> f64 {
        TOP + (self.size.height - TOP - BOTTOM) * (1.0 - value / self.top)
    }

    /// Lines across, each with its value.
    fn grid(&self, html: &mut String) {
        let mut at = 0.0;
        while at <= self.top * 1.0001 {
            let _ = writeln!(
                html,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"#ddd\"/><text x=\"{2}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
                self.size.width,
                self.y(at),
                LEFT - 6.0,
                self.y(at) + 4.0,
                shown(at)
            );
            at += self.step;
        }
    }

    /// Names of the clusters. Names that would run into each other are smaller.
    fn names(&self, html: &mut String) {
        let longest = self.chart.at.iter().map(|name| name.chars().count()).max().unwrap_or(1).max(1);
        let size = (self.cluster / longest as f64 / 0.62).clamp(7.0, 12.0);
        for (i, name) in self.chart.at.iter().enumerate() {
            let _ = writeln!(
                html,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" font-size=\"{size:.1}\">{}</text>",
                LEFT + self.cluster * (i as f64 + 0.5),
                self.size.height - BOTTOM + 18.0,
                escape(name)
            );
        }
    }

    fn line(&self, html: &mut String, series: usize, values: &[f64]) {
        let point = |(i, v): (usize, &f64)| format!("{:.1},{:.1}", LEFT + self.cluster * (i as f64 + 0.5), self.y(*v));
        // A figure that is missing is a gap at an end, or is passed over.
        let points: Vec<String> = values.iter().enumerate().filter(|(_, v)| v.is_finite()).map(point).collect();
        let _ = writeln!(
            html,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>",
            points.join(" "),
            colour(series),
            if series % 2 == 1 { " stroke-dasharray=\"6 4\"" } else { "" }
        );
    }

    fn bars(&self, html: &mut String, series: usize, name: &str, values: &[f64]) {
        let bar = self.cluster * 0.8 / self.chart.series.len() as f64;
        for (i, v) in values.iter().enumerate() {
            let x = LEFT + self.cluster * (i as f64 + 0.1) + bar * series as f64;
            let drawn = self.y(v.min(self.top));
            let _ = writeln!(
                html,
                "<rect x=\"{x:.1}\" y=\"{drawn:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{}: {}</title></rect>",
                bar * 0.95,
                (self.size.height - BOTTOM - drawn).max(0.5),
                colour(series),
                escape(name),
                shown(*v)
            );
            if *v > self.top {
                cut_off(html, x, bar, *v);
            }
        }
    }

    fn legend(&self, html: &mut String, series: usize, name: &str) {
        let line = self.size.height + LEGEND * series as f64;
        let _ = writeln!(
            html,
            "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{}\" y=\"{:.1}\">{}</text>",
            line - 2.0,
            colour(series),
            LEFT + 18.0,
            line + 8.0,
            escape(name)
        );
    }
}

fn colour(series: usize) -> &'static str {
    COLOURS[series % COLOURS.len()]
}

/// Marks a bar that is higher than the chart. The figure stands above it, or in it where it is narrow.
fn cut_off(html: &mut String, x: f64, bar: f64, value: f64) {
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
        shown(value)
    );
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

/// Text as HTML has it.
pub fn escape(text: &str) -> String {
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
        draw(&mut html, &cut, FULL);
        assert!(html.contains(">700</text>"), "{html}");
    }
}
