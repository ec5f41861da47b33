//! A flame graph: one picture without external scripts or fonts.
//!
//! Each call is a bar as wide as its share of all, above those that called it. The name and the share of a
//! bar are in its title, which browsers show next to the pointer.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Pixels of the picture, and of a bar.
const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 17.0;
/// Narrower bars are omitted: they are invisible, and make the picture large.
const NARROWEST: f64 = 0.3;
/// Pixels of a character, about.
const CHARACTER: f64 = 7.0;

/// A call and its callees.
#[derive(Default)]
struct Node {
    count: u64,
    calls: BTreeMap<String, Node>,
}

impl Node {
    fn depth(&self, all: f64) -> usize {
        let seen = self.calls.values().filter(|node| width(node.count, all) >= NARROWEST);
        1 + seen.map(|node| node.depth(all)).max().unwrap_or(0)
    }
}

fn width(count: u64, all: f64) -> f64 {
    count as f64 / all * WIDTH
}

/// The picture of stacks, each from the outermost call to the innermost and how many of a unit it has.
pub(super) fn picture(title: &str, unit: &str, stacks: &[(Vec<String>, u64)]) -> String {
    let mut root = Node::default();
    for (calls, count) in stacks {
        root.count += count;
        let mut node = &mut root;
        for call in calls {
            node = node.calls.entry(call.clone()).or_default();
            node.count += count;
        }
    }
    let all = root.count.max(1) as f64;
    let bottom = HEIGHT * (root.depth(all) as f64 + 1.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"4\" y=\"13\">{}</text>\n",
        escaped(title),
        height = bottom + HEIGHT,
    );
    bar(&mut out, "all", &root, Corner { left: 0.0, top: bottom }, Total { count: all, unit });
    out.push_str("</svg>\n");
    out
}

/// The upper left corner of a bar, in pixels.
#[derive(Clone, Copy)]
struct Corner {
    left: f64,
    top: f64,
}

/// The total of a graph, of which each bar is a share.
#[derive(Clone, Copy)]
struct Total<'u> {
    count: f64,
    unit: &'u str,
}

fn bar(out: &mut String, name: &str, node: &Node, corner: Corner, total: Total<'_>) {
    let (Corner { left, top }, Total { count: all, unit }) = (corner, total);
    let wide = width(node.count, all);
    if wide < NARROWEST {
        return;
    }
    let share = node.count as f64 / all * 100.0;
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<g><title>{name} ({count} {unit}, {share:.1} %)</title><rect x=\"{left:.1}\" y=\"{top}\" width=\"{wide:.1}\" \
         height=\"{HEIGHT}\" fill=\"{colour}\" stroke=\"#fff\" stroke-width=\".5\"/>",
        name = escaped(name),
        count = node.count,
        colour = colour(name),
    );
    let room = ((wide - 6.0) / CHARACTER).max(0.0) as usize;
    if room >= 3 {
        let is_short = name.chars().count() <= room;
        let shown: String =
            if is_short { name.to_owned() } else { name.chars().take(room - 1).chain(['…']).collect() };
        let (x, y) = (left + 3.0, top + 12.0);
        let _ = write!(out, "<text x=\"{x:.1}\" y=\"{y}\">{}</text>", escaped(&shown));
    }
    out.push_str("</g>\n");
    let mut left = left;
    for (name, call) in &node.calls {
        bar(out, name, call, Corner { left, top: top - HEIGHT }, total);
        left += width(call.count, all);
    }
}

/// The same for the same name, in every picture.
fn colour(name: &str) -> String {
    let hash = name.bytes().fold(5381_u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(byte));
    format!("hsl({},{}%,{}%)", 10 + hash % 45, 65 + hash / 64 % 25, 62 + hash / 4096 % 12)
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(calls: &[&str], count: u64) -> (Vec<String>, u64) {
        (calls.iter().map(|call| (*call).to_owned()).collect(), count)
    }

    #[test]
    fn bars_are_as_wide_as_their_share() {
        let stacks = [
            stack(&["worker", "a", "b"], 6),
            stack(&["worker", "a"], 2),
            stack(&["worker", "<T & \"x\">"], 2),
        ];
        let picture = picture("a < b", "samples", &stacks);
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        for expected in [
            ">a &lt; b</text>",
            "<title>all (10 samples, 100.0 %)</title><rect x=\"0.0\" y=\"85\" width=\"1200.0\"",
            "<title>a (8 samples, 80.0 %)</title><rect x=\"240.0\" y=\"51\" width=\"960.0\"",
            "<title>b (6 samples, 60.0 %)</title><rect x=\"240.0\" y=\"34\" width=\"720.0\"",
            "<title>&lt;T &amp; &quot;x&quot;&gt; (2 samples, 20.0 %)</title><rect x=\"0.0\"",
        ] {
            assert!(picture.contains(expected), "{expected} in {picture}");
        }
        assert!(!picture.contains("<script") && !picture.contains("href"));
    }

    #[test]
    fn invisible_bars_are_left_out() {
        let stacks = [stack(&["wide"], 100_000), stack(&["narrow"], 1)];
        let shown = picture("", "bytes", &stacks);
        assert!(shown.contains("wide") && !shown.contains("narrow"));
        assert!(!picture("", "bytes", &[]).contains("<g>"), "nothing was seen");
        let long = picture("", "bytes", &[stack(&[&"ü".repeat(500)], 1)]);
        assert!(long.contains("ü…</text>"));
    }
}
