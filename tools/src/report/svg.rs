//! Charts as inline SVG: no script, colours by the page's style.

use std::fmt::Write;

/// Text for an element or an attribute. Characters that XML has no place for become a mark.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' | ' '..='\u{7e}' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' => {
                out.push(c);
            }
            '\u{10000}'.. => out.push(c),
            _ => out.push('\u{fffd}'),
        }
    }
    out
}

/// Microseconds with three digits: `1.23 µs`, `45.6 ms`.
pub fn time(us: f64) -> String {
    crate::table::micros(us).replace("us", "µs")
}

/// A number with three digits or so: `0.123`, `45.6`, `12,345`.
pub fn number(n: f64) -> String {
    let size = n.abs();
    match size {
        _ if n.fract() == 0.0 && size < 1e15 => signed(n),
        _ if size < 1e-3 => format!("{n:.1e}"),
        _ if size < 1.0 => format!("{n:.3}"),
        _ if size < 10.0 => format!("{n:.2}"),
        _ if size < 1e3 => format!("{n:.1}"),
        _ => signed(n.round()),
    }
}

fn signed(n: f64) -> String {
    let digits = crate::table::count(n.abs() as u64);
    if n < 0.0 {
        format!("-{digits}")
    } else {
        digits
    }
}

/// A count for an axis: `0`, `250`, `1.5k`, `20k`, `3M`.
pub fn short(n: f64) -> String {
    let (value, unit) = match n.abs() {
        size if size >= 1e9 => (n / 1e9, "G"),
        size if size >= 1e6 => (n / 1e6, "M"),
        size if size >= 1e3 => (n / 1e3, "k"),
        _ => (n, ""),
    };
    let text = format!("{value:.2}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Where a value lies.
#[derive(Clone, Copy, Debug)]
enum Scale {
    Linear(f64, f64),
    Log(f64, f64),
    /// A quantile, by `log10(1 / (1 - q))`, up to so many nines.
    Nines(f64),
}

impl Scale {
    /// From 0 to 1.
    fn at(self, value: f64) -> f64 {
        let part = match self {
            Scale::Linear(low, high) => (value - low) / (high - low),
            Scale::Log(low, high) => (value.max(low) / low).ln() / (high / low).ln(),
            Scale::Nines(nines) => -(1.0 - value).max(1e-300).log10() / nines,
        };
        if part.is_finite() {
            part.clamp(0.0, 1.0)
        } else {
            0.0
        }
    }
}

/// An axis: its scale, where it has marks, and what it is of.
#[derive(Clone, Debug)]
pub struct Axis {
    scale: Scale,
    marks: Vec<(f64, String)>,
    title: String,
}

/// 1, 2 or 5 times a power of ten, so that about `n` of them cover `range`.
fn step(range: f64, n: f64) -> f64 {
    let raw = (range / n).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(raw.log10().floor());
    let nice = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|nice| nice * power >= raw * 0.999);
    nice.unwrap_or(10.0) * power
}

impl Axis {
    /// From 0 to at least `most`.
    pub fn linear(most: f64, marks: f64, title: &str, text: impl Fn(f64) -> String) -> Self {
        let most = if most > 0.0 && most.is_finite() {
            most
        } else {
            1.0
        };
        let step = step(most, marks);
        let steps = (most / step * 0.999).ceil().max(1.0);
        let marks = (0..=steps as u32).map(|i| f64::from(i) * step);
        Self {
            scale: Scale::Linear(0.0, steps * step),
            marks: marks.map(|mark| (mark, text(mark))).collect(),
            title: title.to_owned(),
        }
    }

    /// From 0 to exactly `most`: time.
    pub fn seconds(most: f64) -> Self {
        let most = if most > 0.0 && most.is_finite() {
            most
        } else {
            1.0
        };
        let step = step(most, 6.0);
        let marks = (0..=(most / step * 1.0001) as u32).map(|i| f64::from(i) * step);
        Self {
            scale: Scale::Linear(0.0, most),
            marks: marks.map(|mark| (mark, number(mark))).collect(),
            title: "seconds since the beginning".into(),
        }
    }

    /// From `low` to `high`, a mark at each doubling, or each second one, and so on.
    pub fn doubling(
        low: f64,
        high: f64,
        doublings: i32,
        title: &str,
        text: impl Fn(f64) -> String,
    ) -> Self {
        let low = low.max(1.0);
        let high = high.max(low * 2.0);
        let step = 2_f64.powi(doublings.max(1));
        let marks = std::iter::successors(Some(low), |mark| Some(mark * step));
        let marks = marks.take_while(|mark| *mark <= high * 1.001);
        Self {
            scale: Scale::Log(low, high),
            marks: marks.map(|mark| (mark, text(mark))).collect(),
            title: title.to_owned(),
        }
    }

    /// Latencies, in microseconds: logarithmic.
    pub fn latency(values: impl Iterator<Item = f64>) -> Self {
        Self::decades(values, |us| match us {
            _ if us < 1.0 => format!("{} ns", number(us * 1e3)),
            _ if us < 1e3 => format!("{} µs", number(us)),
            _ if us < 1e6 => format!("{} ms", number(us / 1e3)),
            _ => format!("{} s", number(us / 1e6)),
        })
    }

    /// What the values lie between: logarithmic, marks at powers of ten, or also at 2 and 5 times these.
    pub fn decades(values: impl Iterator<Item = f64>, text: impl Fn(f64) -> String) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| *value > 0.0 && value.is_finite()) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        // To the next 1, 2 or 5 on both sides.
        let nice = |exponent: i32| [1.0, 2.0, 5.0].map(|n| n * 10_f64.powi(exponent));
        let all: Vec<_> = (-4..12).flat_map(nice).collect();
        let low = all.iter().rev().find(|mark| **mark <= low * 1.0001);
        let low = low.copied().unwrap_or(1e-4);
        let high = all
            .iter()
            .find(|mark| **mark >= high * 0.9999 && **mark > low);
        let high = high.copied().unwrap_or(1e12);
        let decades = (high / low).log10();
        let is_marked = |mark: &f64| {
            let first = mark / 10_f64.powf(mark.log10().floor() + 1e-9);
            decades <= 2.2 || first < 1.5
        };
        let marks = all
            .iter()
            .filter(|mark| (low * 0.999..=high * 1.001).contains(*mark));
        Self {
            scale: Scale::Log(low, high),
            marks: marks
                .filter(|mark| is_marked(mark))
                .map(|mark| (*mark, text(*mark)))
                .collect(),
            title: String::new(),
        }
    }

    /// Percentiles, of at most `count` values.
    pub fn percentiles(count: f64) -> Self {
        let nines = count.max(10.0).log10().ceil().clamp(2.0, 9.0);
        let mut marks = vec![(0.0, String::new()), (0.5, "50 %".to_owned())];
        for nine in 1..=nines as usize {
            let text = match nine {
                1 => "90 %".to_owned(),
                2 => "99 %".to_owned(),
                more => format!("99.{} %", "9".repeat(more - 2)),
            };
            // Long ones stand on every other mark, so that none covers the next.
            let shown = nine < 4 || (nines as usize - nine).is_multiple_of(2);
            let text = if shown { text } else { String::new() };
            marks.push((1.0 - 10_f64.powi(-(nine as i32)), text));
        }
        Self {
            scale: Scale::Nines(nines),
            marks,
            title: "percentile".into(),
        }
    }
}

/// What a chart looks like that stands alone.
const ALONE: &str = "text{font:12px sans-serif;fill:#605f5b}.title{font-size:14px;fill:#1b1b1a}.ground{fill:#fff}.y{text-anchor:end}\
    .x{text-anchor:middle}path{fill:none}.rule{stroke:#e9e8e4}.axis,.tick{stroke:#b4b2ac}.line{stroke:var(--c);stroke-width:2}\
    .raw{stroke-dasharray:5 4}.seen{fill:var(--c)}.hit{fill:transparent}.s0{--c:#2a78d6}.s1{--c:#e0591f}.s2{--c:#159a6b}";

const WIDTH: f64 = 480.0;
const LEFT: f64 = 58.0;
const TOP: f64 = 12.0;

/// A chart under way.
#[derive(Debug)]
pub struct Chart {
    x: Axis,
    y: Axis,
    height: f64,
    right: f64,
    marks: String,
    /// Labels at the lines' ends: place and text.
    ends: Vec<(f64, String)>,
}

/// A point of a line, with what to tell of it.
pub type Point = (f64, f64, String);

impl Chart {
    /// An empty chart; with `ends` there is room for labels at the ends of lines.
    pub fn new(x: Axis, y: Axis, ends: bool) -> Self {
        Self {
            x,
            y,
            height: 260.0,
            right: if ends { 40.0 } else { 14.0 },
            marks: String::new(),
            ends: Vec::new(),
        }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.x.scale.at(value) * (WIDTH - LEFT - self.right)
    }

    fn y(&self, value: f64) -> f64 {
        let bottom = self.height - 40.0;
        bottom - self.y.scale.at(value) * (bottom - TOP)
    }

    /// A line through the points, of a class of the style's. `dots`: each point is seen. `end` stands at its end.
    pub fn line(&mut self, points: &[Point], class: &str, dots: bool, end: Option<&str>) {
        if points.is_empty() {
            return;
        }
        let mut path = String::new();
        for (i, (x, y, _)) in points.iter().enumerate() {
            let go = if i == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{go}{:.1} {:.1}", self.x(*x), self.y(*y));
        }
        let _ = write!(self.marks, r#"<path class="line {class}" d="{path}"/>"#);
        // All can be pointed at; where they are too many to be told apart none is seen.
        let seen = dots && points.len() <= 40;
        let mut dots = String::new();
        for (x, y, told) in points {
            let (x, y, told) = (self.x(*x), self.y(*y), escape(told));
            let dot = if seen { 2.6 } else { 0.0 };
            let _ = write!(
                dots,
                r#"<g class="dot {class}"><title>{told}</title><circle class="seen" cx="{x:.1}" cy="{y:.1}" r="{dot}"/><circle class="hit" cx="{x:.1}" cy="{y:.1}" r="7"/></g>"#
            );
        }
        self.marks.push_str(&dots);
        if let (Some(end), Some((_, y, _))) = (end, points.last()) {
            self.ends.push((self.y(*y), end.to_owned()));
        }
    }

    /// A bar from `low` to `high`, over a span of the x axis.
    pub fn bar(&mut self, from: f64, to: f64, low: f64, high: f64, class: &str, told: &str) {
        let (left, right) = (self.x(from), self.x(to));
        let (top, bottom) = (self.y(high), self.y(low));
        // A gap between neighbours, and never so thin that it is not seen.
        let width = (right - left - 2.0).max(1.5);
        let height = (bottom - top).max(1.5);
        let _ = write!(
            self.marks,
            r#"<rect class="fill {class}" x="{:.1}" y="{:.1}" width="{width:.1}" height="{height:.1}"><title>{}</title></rect>"#,
            left + 1.0,
            bottom - height,
            escape(told)
        );
    }

    /// The element. `label` says what it shows to those who can't see it.
    pub fn finish(mut self, label: &str) -> String {
        let bottom = self.height - 40.0;
        let end = WIDTH - self.right;
        let mut out = format!(
            r#"<svg viewBox="0 0 {WIDTH} {}" role="img" aria-label="{}">"#,
            self.height,
            escape(label)
        );
        for (value, text) in &self.y.marks {
            let y = self.y(*value);
            let _ = write!(
                out,
                r#"<path class="rule" d="M{LEFT} {y:.1}H{end}"/><text class="y" x="{}" y="{:.1}">{}</text>"#,
                LEFT - 7.0,
                y + 4.0,
                escape(text)
            );
        }
        for (value, text) in &self.x.marks {
            let x = self.x(*value);
            // A text in the middle of the last mark would stand out of the chart.
            let class = if x > end - 12.0 && text.len() > 4 {
                "y"
            } else {
                "x"
            };
            let _ = write!(
                out,
                r#"<path class="tick" d="M{x:.1} {bottom}v4"/><text class="{class}" x="{x:.1}" y="{}">{}</text>"#,
                bottom + 17.0,
                escape(text)
            );
        }
        let _ = write!(
            out,
            r#"<path class="axis" d="M{LEFT} {bottom}H{end}"/><text class="x" x="{:.1}" y="{}">{}</text>"#,
            (LEFT + end) / 2.0,
            bottom + 34.0,
            escape(&self.x.title)
        );
        out.push_str(&self.marks);
        // Labels that would cover each other are moved down, and all of them up if there is no room.
        self.ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut last = f64::NEG_INFINITY;
        for (y, _) in &mut self.ends {
            *y = (*y + 4.0).max(last + 12.0);
            last = *y;
        }
        let over = (last - bottom - 4.0).max(0.0);
        for (y, text) in &self.ends {
            let _ = write!(
                out,
                r#"<text class="end" x="{}" y="{:.1}">{}</text>"#,
                end + 6.0,
                y - over,
                escape(text)
            );
        }
        out.push_str("</svg>");
        out
    }
}

/// Charts below each other as a file of its own: a title, what the lines are, what each chart is of (nothing where the title says
/// it), and their colours, on a ground of its own.
pub fn alone(title: &str, legend: &[(&str, &str)], charts: Vec<(&str, Chart)>) -> String {
    let mut body = String::new();
    let mut y = 26.0;
    for (class, name) in legend {
        let _ = write!(
            body,
            r#"<path class="line {class}" d="M0 {}h22"/><text x="30" y="{}">{}</text>"#,
            y + 8.0,
            y + 12.0,
            escape(name)
        );
        y += 18.0;
    }
    for (of, chart) in charts {
        if !of.is_empty() {
            let _ = write!(body, r#"<text y="{}">{}</text>"#, y + 14.0, escape(of));
            y += 20.0;
        }
        let height = chart.height;
        let chart = chart.finish(format!("{title} {of}").trim_end());
        let chart = chart.strip_prefix("<svg").unwrap_or(&chart);
        let _ = write!(
            body,
            r#"<svg y="{y}" width="{WIDTH}" height="{height}"{chart}"#
        );
        y += height;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-8 0 {} {y}\"><style>{ALONE}</style>\
         <rect class=\"ground\" x=\"-8\" width=\"100%\" height=\"100%\"/><text class=\"title\" x=\"0\" y=\"18\">{}</text>{body}</svg>\n",
        WIDTH + 16.0,
        escape(title)
    )
}

/// A bar of parts that add up, for each row.
pub fn stacked(
    rows: &[(String, Vec<(&'static str, f64)>)],
    text: impl Fn(f64) -> String,
    label: &str,
) -> String {
    let whole = |parts: &[(&str, f64)]| parts.iter().map(|(_, value)| value).sum::<f64>();
    let most = rows
        .iter()
        .map(|(_, parts)| whole(parts))
        .fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    let height = 54.0 * rows.len() as f64 + 4.0;
    let mut out = format!(
        r#"<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{}">"#,
        escape(label)
    );
    for (i, (name, parts)) in rows.iter().enumerate() {
        let y = 54.0 * i as f64;
        let _ = write!(
            out,
            r#"<text class="row" x="0" y="{}">{}</text><text class="sum" x="{WIDTH}" y="{}">{}</text>"#,
            y + 14.0,
            escape(&cut(name, 44)),
            y + 14.0,
            escape(&text(whole(parts)))
        );
        let mut x = 0.0;
        for (class, value) in parts {
            let width = value / most * WIDTH;
            let _ = write!(
                out,
                r#"<rect class="fill {class}" x="{x:.1}" y="{}" width="{:.1}" height="22"><title>{}</title></rect>"#,
                y + 22.0,
                (width - 2.0).max(0.5),
                escape(&text(*value))
            );
            if width > 58.0 {
                let _ = write!(
                    out,
                    r#"<text class="in" x="{:.1}" y="{}">{}</text>"#,
                    x + 7.0,
                    y + 37.0,
                    escape(&text(*value))
                );
            }
            x += width;
        }
    }
    out.push_str("</svg>");
    out
}

/// At most `most` characters of a name; its end, which tells more.
pub fn cut(name: &str, most: usize) -> String {
    let count = name.chars().count();
    match count <= most {
        true => name.to_owned(),
        false => format!(
            "…{}",
            name.chars().skip(count - most + 1).collect::<String>()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_can_break_out_of_nothing() {
        assert_eq!(
            escape("<b a='1' c=\"2\">&\u{0}\u{b}\u{ffff}é\u{1f600}"),
            "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;\u{fffd}\u{fffd}\u{fffd}é\u{1f600}"
        );
    }

    #[test]
    fn axes_hold_what_is_on_them() {
        for most in [0.0, 0.3, 1.0, 7.0, 9.99, 1e7, f64::NAN] {
            let axis = Axis::linear(most, 4.0, "", number);
            let Scale::Linear(0.0, high) = axis.scale else {
                panic!("{axis:?}")
            };
            assert!(
                high >= most.max(0.0) && (2..=8).contains(&axis.marks.len()),
                "{axis:?}"
            );
        }
        let axis = Axis::latency([0.0, 3.0, 900.0].into_iter());
        let Scale::Log(low, high) = axis.scale else {
            panic!("{axis:?}")
        };
        assert_eq!((low, high), (2.0, 1000.0));
        let texts: Vec<_> = axis.marks.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["10 µs", "100 µs", "1 ms"]);
        assert!(Axis::latency(std::iter::empty()).marks.len() > 1);
    }

    #[test]
    fn percentiles_lie_by_their_nines() {
        let scale = Axis::percentiles(10_000.0).scale;
        for (quantile, place) in [
            (0.0, 0.0),
            (0.9, 0.25),
            (0.99, 0.5),
            (0.9999, 1.0),
            (1.0, 1.0),
        ] {
            assert!((scale.at(quantile) - place).abs() < 1e-6, "{quantile}");
        }
    }

    #[test]
    fn numbers_read_well() {
        let numbers = [0.0, 0.12345, 1.005, 45.67, 12_345.6, -3.0, 0.0001].map(number);
        assert_eq!(
            numbers,
            ["0", "0.123", "1.00", "45.7", "12,346", "-3", "1.0e-4"]
        );
        assert_eq!(
            [0.0, 250.0, 1500.0, 2e7].map(short),
            ["0", "250", "1.5k", "20M"]
        );
        assert_eq!(cut("abcdef", 4), "…def");
    }
}
