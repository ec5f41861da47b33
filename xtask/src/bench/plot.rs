//! A bar plot as SVG: groups of horizontal bars over one scale.

use std::fmt::Write as _;

/// One title and the bars under it.
pub(super) struct Group {
    pub(super) title: String,
    pub(super) bars: Vec<(String, f64)>,
}

const WIDTH: f64 = 760.0;
const LABELS: f64 = 150.0;
const ROW: f64 = 18.0;
const TITLE_ROW: f64 = 30.0;
const MARGIN: f64 = 12.0;
/// Room for the figure right of the longest bar.
const FIGURE: f64 = 60.0;

/// Draws `groups`; a line marks 1, the reference.
pub(super) fn bars(groups: &[Group]) -> String {
    let rows: usize = groups.iter().map(|group| group.bars.len()).sum();
    let height = 2.0 * MARGIN + TITLE_ROW * groups.len() as f64 + ROW * rows as f64;
    let largest = groups.iter().flat_map(|group| &group.bars).map(|bar| bar.1).fold(1.0, f64::max);
    let scale = (WIDTH - LABELS - FIGURE - MARGIN) / largest;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>CPU time per request relative to nginx (shorter is cheaper)</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    let mut top = MARGIN;
    for group in groups {
        let _ = writeln!(
            svg,
            "<text x=\"{MARGIN}\" y=\"{}\" font-weight=\"bold\">{}</text>",
            top + 20.0,
            escape(&group.title)
        );
        top += TITLE_ROW;
        let end = top + ROW * group.bars.len() as f64;
        for (label, value) in &group.bars {
            let colour = if label.starts_with("Sigma") { "#2b6cb0" } else { "#a0aec0" };
            let length = value * scale;
            let text = top + 12.5;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{}</text>\
                 <rect x=\"{LABELS}\" y=\"{}\" width=\"{length:.1}\" height=\"13\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{text}\">{value:.2}</text>",
                LABELS - 6.0,
                escape(label),
                top + 2.0,
                LABELS + length + 5.0,
            );
            top += ROW;
        }
        let one = LABELS + scale;
        let start = end - ROW * group.bars.len() as f64;
        let _ = writeln!(
            svg,
            "<line x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"{start}\" y2=\"{end}\" stroke=\"#1a202c\" stroke-dasharray=\"3 2\"/>"
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let group = Group { title: "a < b".into(), bars: vec![("Sigma".into(), 0.5), ("nginx".into(), 1.0)] };
        let svg = bars(&[group]);
        let whole = WIDTH - LABELS - FIGURE - MARGIN;
        assert!(svg.contains(&format!("width=\"{whole:.1}\"")), "{svg}");
        assert!(svg.contains(&format!("width=\"{:.1}\"", whole / 2.0)), "{svg}");
        assert!(svg.contains("a &lt; b"), "{svg}");
    }
}
