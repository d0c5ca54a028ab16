//! A map of a disk as SVG: which directory owns which part.

use std::fmt::Write;

/// Cells of a row, and the pixels of a cell.
const ROW: usize = 128;
const CELL: usize = 6;
/// Room for the title.
const TOP: usize = 20;

/// The map: a colour for each directory, black where files of several lie in one cell. `cell` is in bytes; `owners` as
/// [`super::Layout::map`] has them.
pub fn svg(title: &str, cell: u64, owners: &[u32]) -> String {
    let (width, height) = (ROW * CELL, owners.len().div_ceil(ROW) * CELL);
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    let mut out = format!(
        "<svg viewBox=\"0 0 {width} {}\" width=\"{width}\" font-size=\"12\" role=\"img\">\
         <text x=\"0\" y=\"14\">{title}: a cell is {} KiB</text>\
         <rect x=\"0\" y=\"{TOP}\" width=\"{width}\" height=\"{height}\" fill=\"#fff\" stroke=\"#ccc\"/>",
        height + TOP + 4,
        cell >> 10
    );
    for (y, row) in owners.chunks(ROW).enumerate() {
        let mut x = 0;
        for run in row.chunk_by(|a, b| a == b) {
            let colour = match run[0] {
                0 => None,
                1 => Some("#333".to_string()),
                // Neighbours in number are far apart in hue.
                dir => Some(format!("hsl({},{}%,{}%)", dir * 137 % 360, 55 + dir % 3 * 15, 45 + dir % 4 * 8)),
            };
            if let Some(colour) = colour {
                let _ = write!(
                    out,
                    "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{CELL}\" fill=\"{colour}\"/>",
                    x * CELL,
                    TOP + y * CELL,
                    run.len() * CELL
                );
            }
            x += run.len();
        }
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_owner_are_one_rectangle() {
        let map = svg("a < b", 4096, &[2, 2, 2, 0, 1, 3]);
        assert_eq!(map.matches("<rect").count(), 1 + 3, "{map}");
        assert!(map.contains("a &lt; b") && map.contains("width=\"18\"") && map.ends_with("</svg>\n"));
    }
}
