//! The page: what stands where, and how it looks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::load::{Calls, Lane, Latency, Part, Run, Span, Summary, headline};
use super::svg::{self, Axis, Chart, Point, escape, number, short, time};

/// How many runs a page can tell apart by colour.
pub const MAX_RUNS: usize = 6;

/// The page about these runs, whole and by itself.
pub fn page(runs: &[Run]) -> String {
    let mut out = String::new();
    let names: Vec<_> = runs.iter().map(|run| run.name.as_str()).collect();
    let title = format!("Moonring: {}", names.join(" and "));
    // Writing to a String can't fail.
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>{}</title>\
         <style>{STYLE}</style></head><body><main>",
        escape(&title)
    );
    head(&mut out, runs);
    let tags: BTreeSet<_> = runs.iter().flat_map(|run| run.lanes.keys()).collect();
    let mut tags: Vec<_> = tags.into_iter().map(String::as_str).collect();
    // Lanes in the engine's order, then requests and what else there is.
    let known = ["lookup", "retrieve", "store", "delete", "request"];
    let rank = |tag: &str| known.iter().position(|k| *k == tag).unwrap_or(known.len());
    tags.sort_by_key(|tag| (is_aside(runs, tag), rank(tag), *tag));
    for tag in tags {
        section(&mut out, runs, tag);
    }
    out.push_str(
        "<footer>Percentiles of an .hlog are exact to its histograms' two or three digits. Lines over time have a point per \
         interval, in its middle. Point at a mark to read it.</footer></main></body></html>\n",
    );
    out
}

/// What the runs did in this lane was not what they measured.
fn is_aside(runs: &[Run], tag: &str) -> bool {
    let lanes = runs.iter().filter_map(|run| run.lanes.get(tag));
    lanes.into_iter().any(|lane| lane.aside)
}

/// Who is who.
fn head(out: &mut String, runs: &[Run]) {
    out.push_str("<header><h1>Latency report</h1><div class=\"runs\">");
    for (i, run) in runs.iter().enumerate() {
        let mut facts = run.facts.clone();
        if let Some(began) = run.began_unix_s {
            facts.insert(0, ("began, UTC".into(), utc(began)));
        }
        let seconds = run.seconds();
        if seconds > 0.0 && !facts.iter().any(|(name, _)| name == "seconds") {
            facts.push(("seconds".into(), number(seconds)));
        }
        let _ = write!(out, "<article class=\"card\"><h2>{}</h2><dl>", key(i, runs));
        for (name, value) in &facts {
            let _ = write!(
                out,
                "<div><dt>{}</dt><dd>{}</dd></div>",
                escape(name),
                escape(value)
            );
        }
        out.push_str("</dl>");
        if run.lanes.values().all(|lane| lane.calls.is_none()) {
            out.push_str(
                "<p class=\"note\">No JSON of this run was given: batch sizes and errors are not known.</p>",
            );
        }
        if run.in_turns {
            out.push_str(
                "<p class=\"note\">The engine was measured in turns with others: over time there is nothing of it in between.</p>",
            );
        }
        for error in &run.errors {
            let _ = write!(out, "<p class=\"bad\">{}</p>", escape(error));
        }
        out.push_str("</article>");
    }
    out.push_str("</div></header>");
}

/// A run's mark and name.
fn key(i: usize, runs: &[Run]) -> String {
    let name = &runs[i].name;
    format!(
        "<span class=\"key\"><i class=\"s{}\"></i><span>{}</span></span>",
        i % MAX_RUNS,
        escape(name)
    )
}

fn legend(keys: &[(&str, String)]) -> String {
    let keys = keys.iter().map(|(class, text)| {
        format!(
            "<span class=\"key\"><i class=\"{class}\"></i><span>{}</span></span>",
            escape(text)
        )
    });
    format!("<p class=\"legend\">{}</p>", keys.collect::<String>())
}

/// All about one lane.
fn section(out: &mut String, runs: &[Run], tag: &str) {
    let lanes: Vec<(usize, &Lane)> = runs
        .iter()
        .enumerate()
        .filter_map(|(i, run)| Some((i, run.lanes.get(tag)?)))
        .collect();
    let title = if tag.is_empty() { "no tag" } else { tag };
    let _ = write!(out, "<section><h2>{}</h2>", escape(title));
    if is_aside(runs, tag) {
        out.push_str(
            "<p class=\"note\">Not what was measured: the bench does it between its rounds.</p>",
        );
    }
    let part = headline(lanes.iter().map(|(_, lane)| *lane));
    if let Some(part) = part {
        let _ = write!(out, "<p class=\"note\">Latency {}.</p>", part.title());
        tiles(out, runs, &lanes, part);
    }
    out.push_str("<div class=\"grid\">");
    if let Some(part) = part {
        percentiles(out, runs, &lanes, part, title);
    }
    breakdown(out, runs, &lanes, title);
    throughput(out, runs, &lanes, title);
    batches(out, runs, &lanes, title);
    out.push_str("</div><div class=\"grid\">");
    if let Some(part) = part {
        over_time(out, runs, &lanes, part, title);
    }
    out.push_str("</div><div class=\"grid\">");
    errors(out, runs, &lanes, title);
    out.push_str("</div>");
    table(out, runs, &lanes);
    out.push_str("</section>");
}

fn card(out: &mut String, title: &str, sub: &str, legend: &str, body: &str) {
    let _ = write!(
        out,
        "<figure class=\"card\"><figcaption><b>{}</b><span>{}</span></figcaption>{legend}{body}</figure>",
        escape(title),
        escape(sub)
    );
}

fn ratio(of: f64, to: f64) -> String {
    match to > 0.0 && of.is_finite() {
        true => {
            let ratio = of / to;
            let digits = if ratio < 10.0 { 2 } else { 0 };
            format!("{ratio:.digits$}×")
        }
        false => "–".into(),
    }
}

/// Ops a second over the whole run.
fn rate(run: &Run, lane: &Lane) -> Option<f64> {
    if lane.rate.is_some() {
        return lane.rate;
    }
    let seconds = run.seconds();
    let done = match (&lane.calls, lane.latency.get(&Part::Total)) {
        (Some(calls), _) => calls.by_code.values().sum(),
        (None, latency) => latency?.total.count,
    };
    (seconds > 0.0).then(|| done / seconds)
}

fn tiles(out: &mut String, runs: &[Run], lanes: &[(usize, &Lane)], part: Part) {
    type Figure = fn(&Run, &Lane, Part) -> Option<f64>;
    type Text = fn(f64) -> String;
    fn at(lane: &Lane, part: Part, i: usize) -> Option<f64> {
        lane.latency.get(&part).map(|latency| latency.total.at[i])
    }
    let figures: [(&str, Figure, Text); 6] = [
        ("ops/s", |run, lane, _| rate(run, lane), number),
        ("p50", |_, lane, part| at(lane, part, 0), time),
        ("p99", |_, lane, part| at(lane, part, 2), time),
        ("p99.9", |_, lane, part| at(lane, part, 3), time),
        ("max", |_, lane, part| at(lane, part, 4), time),
        (
            "errors",
            |_, lane, _| Some(lane.calls.as_ref()?.errors().map(|(_, n)| n).sum()),
            number,
        ),
    ];
    out.push_str("<div class=\"tiles\">");
    for (name, figure, text) in figures {
        let values: Vec<_> = lanes
            .iter()
            .filter_map(|(i, lane)| Some((*i, figure(&runs[*i], lane, part)?)))
            .collect();
        if values.is_empty() {
            continue;
        }
        let _ = write!(out, "<div class=\"card tile\"><h3>{name}</h3>");
        for (at, (i, value)) in values.iter().enumerate() {
            let mark = match runs.len() {
                1 => String::new(),
                _ => format!("<i class=\"s{}\"></i>", i % MAX_RUNS),
            };
            let against = match (at, values.first()) {
                (1.., Some((_, first))) => format!("<em>{}</em>", ratio(*value, *first)),
                _ => String::new(),
            };
            let _ = write!(out, "<p>{mark}<b>{}</b>{against}</p>", text(*value));
        }
        out.push_str("</div>");
    }
    out.push_str("</div>");
}

/// Latency by percentile: what the caller gets, and for an open loop the raw one beside it.
fn percentiles(out: &mut String, runs: &[Run], lanes: &[(usize, &Lane)], part: Part, title: &str) {
    let parts: &[_] = match part {
        Part::Corrected => &[Part::Corrected, Part::Caller],
        _ => &[part],
    };
    let lines = lanes.iter().flat_map(|(i, lane)| {
        let of = |part: &Part| Some((*i, *part, lane.latency.get(part)?, *part != parts[0]));
        parts.iter().filter_map(of)
    });
    let lines: Vec<(usize, Part, &Latency, bool)> = lines.collect();
    if lines.is_empty() {
        return;
    }
    let values = lines.iter().flat_map(|(_, _, latency, _)| &latency.curve);
    let y = Axis::latency(values.map(|(_, us)| *us));
    let most = lines.iter().map(|(_, _, latency, _)| latency.total.count);
    let mut chart = Chart::new(Axis::percentiles(most.fold(0.0, f64::max)), y, false);
    let mut keys = Vec::new();
    let mut coarse = false;
    for (i, part, latency, raw) in &lines {
        let points = latency.curve.iter().map(|(quantile, us)| {
            let told = format!("{}: {}", percent(*quantile), time(*us));
            (*quantile, *us, told)
        });
        let points: Vec<Point> = points.collect();
        let class = class(*i, *raw);
        chart.line(&points, &class, false, None);
        let name = if runs.len() > 1 { &runs[*i].name } else { "" };
        let text = match name {
            "" => part.title().to_owned(),
            name => format!("{name}, {}", part.title()),
        };
        keys.push((class, text));
        coarse |= !latency.whole;
    }
    let keys: Vec<_> = keys
        .iter()
        .map(|(c, text)| (c.as_str(), text.clone()))
        .collect();
    let sub = match coarse {
        true => "five percentiles only: no .hlog was given",
        false => "",
    };
    let svg = chart.finish(&format!("{title}: latency by percentile"));
    card(out, "Latency by percentile", sub, &legend(&keys), &svg);
}

fn class(i: usize, raw: bool) -> String {
    let dash = if raw { " raw" } else { "" };
    format!("s{}{dash}", i % MAX_RUNS)
}

fn percent(quantile: f64) -> String {
    let text = format!("{:.5}", quantile * 100.0);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} %")
}

/// Where an op's mean time goes. Means add up, percentiles don't.
fn breakdown(out: &mut String, runs: &[Run], lanes: &[(usize, &Lane)], title: &str) {
    let parts = lanes.iter().filter_map(|(i, lane)| {
        let mean = |part| lane.latency.get(&part).map(|latency| latency.total.mean);
        let (total, queue) = (mean(Part::Total)?, mean(Part::Queue)?);
        let mut parts = vec![("queue", queue), ("call", (total - queue).max(0.0))];
        if let Some(caller) = mean(Part::Caller) {
            parts.push(("delivery", (caller - total).max(0.0)));
        }
        if let (Some(caller), Some(corrected)) = (mean(Part::Caller), mean(Part::Corrected)) {
            parts.push(("late", (corrected - caller).max(0.0)));
        }
        Some((runs[*i].name.clone(), parts))
    });
    let rows: Vec<_> = parts.collect();
    if rows.is_empty() {
        return;
    }
    let all = [
        ("queue", "queue wait"),
        ("call", "store call"),
        ("delivery", "delivery to the caller"),
        ("late", "before it was submitted"),
    ];
    let keys: Vec<_> = all
        .into_iter()
        .filter(|(class, _)| {
            rows.iter()
                .any(|(_, parts)| parts.iter().any(|(part, _)| part == class))
        })
        .map(|(class, text)| (class, text.to_owned()))
        .collect();
    let svg = svg::stacked(&rows, time, &format!("{title}: where the mean time goes"));
    let sub = "mean time of an op";
    let body = format!("{svg}{}", waits(runs, lanes));
    card(out, "Where the time goes", sub, &legend(&keys), &body);
}

/// The tails of the two that the engine measures, below the means.
fn waits(runs: &[Run], lanes: &[(usize, &Lane)]) -> String {
    let mut out = String::from(
        "<div class=\"scroll\"><table class=\"small\"><thead><tr><th></th><th>p50</th><th>p99</th><th>max</th></tr></thead><tbody>",
    );
    for (i, lane) in lanes {
        for (part, class) in [(Part::Queue, "queue"), (Part::Call, "call")] {
            let Some(latency) = lane.latency.get(&part) else {
                continue;
            };
            let mark = match runs.len() {
                1 => String::new(),
                _ => format!("<i class=\"s{}\"></i>", i % MAX_RUNS),
            };
            let at = latency.total.at;
            let _ = write!(
                out,
                "<tr><th>{mark}<i class=\"{class}\"></i>{}</th><td>{}</td><td>{}</td><td>{}</td></tr>",
                part.title(),
                time(at[0]),
                time(at[2]),
                time(at[4])
            );
        }
    }
    out.push_str("</tbody></table></div>");
    out
}

fn middle(span: Span) -> f64 {
    span.start + span.length / 2.0
}

fn told(span: Span, what: &str) -> String {
    format!("{} to {} s: {what}", number(span.start), number(span.end()))
}

fn seconds(runs: &[Run]) -> Axis {
    Axis::seconds(runs.iter().map(Run::seconds).fold(0.0, f64::max))
}

/// A line for each run, from 0 up.
fn lines(
    out: &mut String,
    runs: &[Run],
    series: &[(usize, Vec<(Span, f64)>)],
    caption: (&str, &str),
    label: &str,
) {
    let values = series.iter().flat_map(|(_, points)| points);
    let most = values.map(|(_, value)| *value).fold(0.0, f64::max);
    if series.iter().all(|(_, points)| points.is_empty()) {
        return;
    }
    let y = Axis::linear(most, 5.0, "", short);
    let mut chart = Chart::new(seconds(runs), y, false);
    let mut keys = Vec::new();
    for (i, points) in series {
        let points = points
            .iter()
            .map(|(span, value)| (middle(*span), *value, told(*span, &number(*value))));
        let class = class(*i, false);
        chart.line(&points.collect::<Vec<_>>(), &class, true, None);
        keys.push((class, runs[*i].name.clone()));
    }
    let keys: Vec<_> = keys
        .iter()
        .map(|(c, text)| (c.as_str(), text.clone()))
        .collect();
    let legend = if runs.len() > 1 {
        legend(&keys)
    } else {
        String::new()
    };
    card(out, caption.0, caption.1, &legend, &chart.finish(label));
}

fn throughput(out: &mut String, runs: &[Run], lanes: &[(usize, &Lane)], title: &str) {
    let series = lanes.iter().map(|(i, lane)| {
        let by_calls = lane.spans.iter().map(|(span, calls)| {
            let done = calls.by_code.values().sum();
            (*span, span.rate(done))
        });
        let mut points: Vec<_> = by_calls.collect();
        if let (true, Some(latency)) = (points.is_empty(), lane.latency.get(&Part::Total)) {
            let by_count = latency.spans.iter();
            points = by_count
                .map(|(span, summary)| (*span, span.rate(summary.count)))
                .collect();
        }
        (*i, points)
    });
    let what = if title == "request" {
        "requests a second"
    } else {
        "ops a second"
    };
    lines(
        out,
        runs,
        &series.collect::<Vec<_>>(),
        ("Throughput over time", what),
        &format!("{title}: throughput over time"),
    );
}

fn batches(out: &mut String, runs: &[Run], lanes: &[(usize, &Lane)], title: &str) {
    let keys = |calls: &Calls| (calls.calls > 0.0).then(|| calls.keys / calls.calls);
    let series = lanes.iter().map(|(i, lane)| {
        let spans = lane.spans.iter();
        let points = spans.filter_map(|(span, calls)| Some((*span, keys(calls)?)));
        (*i, points.collect())
    });
    lines(
        out,
        runs,
        &series.collect::<Vec<_>>(),
        ("Batch sizes over time", "keys in a store call"),
        &format!("{title}: batch sizes over time"),
    );
}

/// Percentiles over time, a panel for each run, on one scale.
fn over_time(out: &mut String, runs: &[Run], lanes: &[(usize, &Lane)], part: Part, title: &str) {
    let panels: Vec<_> = lanes
        .iter()
        .filter_map(|(i, lane)| Some((*i, lane.latency.get(&part)?)))
        .filter(|(_, latency)| !latency.spans.is_empty())
        .collect();
    let all = panels.iter().flat_map(|(_, latency)| &latency.spans);
    let y = Axis::latency(all.flat_map(|(_, summary)| [0, 1, 2, 4].map(|at| summary.at[at])));
    for (i, latency) in panels {
        let mut chart = Chart::new(seconds(runs), y.clone(), true);
        for (class, at, name) in [
            ("q3", 4, "max"),
            ("q2", 2, "p99"),
            ("q1", 1, "p90"),
            ("q0", 0, "p50"),
        ] {
            let points = latency.spans.iter().map(|(span, summary)| {
                let value = summary.at[at];
                let what = format!("{name} {}", time(value));
                (middle(*span), value, told(*span, &what))
            });
            chart.line(&points.collect::<Vec<_>>(), class, true, Some(name));
        }
        let legend = match runs.len() {
            1 => String::new(),
            _ => format!("<p class=\"legend\">{}</p>", key(i, runs)),
        };
        let svg = chart.finish(&format!("{title}: latency over time, {}", runs[i].name));
        card(out, "Latency over time", part.title(), &legend, &svg);
    }
}

/// Errors over time, a panel for each run that had some.
fn errors(out: &mut String, runs: &[Run], lanes: &[(usize, &Lane)], title: &str) {
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, lane) in lanes {
        for (name, _) in lane.calls.iter().flat_map(Calls::errors) {
            let next = names.len();
            names.entry(name).or_insert(next);
        }
    }
    if names.is_empty() {
        if lanes.iter().any(|(_, lane)| lane.calls.is_some()) {
            out.push_str("<p class=\"note\">No op ended with an error.</p>");
        }
        return;
    }
    let class = |name: &str| format!("e{}", names.get(name).map_or(0, |at| at % 6));
    let most = lanes
        .iter()
        .flat_map(|(_, lane)| &lane.spans)
        .map(|(_, calls)| calls.errors().map(|(_, n)| n).sum::<f64>())
        .fold(0.0, f64::max);
    for (i, lane) in lanes {
        let mut chart = Chart::new(seconds(runs), Axis::linear(most, 5.0, "", short), false);
        for (span, calls) in &lane.spans {
            let mut low = 0.0;
            for (name, n) in calls.errors() {
                let what = told(*span, &format!("{name} {}", number(n)));
                chart.bar(span.start, span.end(), low, low + n, &class(name), &what);
                low += n;
            }
        }
        let mut keys: Vec<_> = Vec::new();
        for (name, n) in lane.calls.iter().flat_map(Calls::errors) {
            keys.push((class(name), format!("{name} {}", number(n))));
        }
        let keys: Vec<_> = keys
            .iter()
            .map(|(c, text)| (c.as_str(), text.clone()))
            .collect();
        let mut legend = legend(&keys);
        if keys.is_empty() && lane.calls.is_some() {
            legend = "<p class=\"legend\">none</p>".into();
        }
        if runs.len() > 1 {
            legend = format!("<p class=\"legend\">{}</p>{legend}", key(*i, runs));
        }
        let svg = chart.finish(&format!("{title}: errors over time, {}", runs[*i].name));
        card(out, "Errors over time", "ops in an interval", &legend, &svg);
    }
}

/// All numbers, with the ratio of each run to the first.
fn table(out: &mut String, runs: &[Run], lanes: &[(usize, &Lane)]) {
    out.push_str(
        "<div class=\"card scroll\"><table><thead><tr><th>latency</th><th>count</th><th>mean</th><th>p50</th><th>p90</th>\
         <th>p99</th><th>p99.9</th><th>max</th></tr></thead>",
    );
    for part in Part::ALL {
        let rows: Vec<_> = lanes
            .iter()
            .filter_map(|(i, lane)| Some((*i, lane.latency.get(&part)?.total)))
            .collect();
        let Some((_, first)) = rows.first().copied() else {
            continue;
        };
        out.push_str("<tbody>");
        for (at, (i, summary)) in rows.iter().enumerate() {
            let name = match runs.len() {
                1 => part.title().to_owned(),
                _ => format!("<i class=\"s{}\"></i>{}", i % MAX_RUNS, part.title()),
            };
            row(out, &name, "", &[number(summary.count)], time, summary);
            if at > 0 {
                let counts = [ratio(summary.count, first.count)];
                let ratios = Summary {
                    count: 0.0,
                    mean: summary.mean / first.mean,
                    at: std::array::from_fn(|i| summary.at[i] / first.at[i]),
                };
                let name = "ratio to the first";
                row(out, name, "ratio", &counts, |r| ratio(r, 1.0), &ratios);
            }
        }
        out.push_str("</tbody>");
    }
    out.push_str("</table></div>");
}

fn row(
    out: &mut String,
    name: &str,
    class: &str,
    first: &[String],
    text: impl Fn(f64) -> String,
    summary: &Summary,
) {
    let _ = write!(out, "<tr class=\"{class}\"><th>{name}</th>");
    let times = [summary.mean].into_iter().chain(summary.at);
    for cell in first.iter().cloned().chain(times.map(text)) {
        let _ = write!(out, "<td>{cell}</td>");
    }
    out.push_str("</tr>");
}

/// Seconds since 1970 as a date and time of day, in UTC.
fn utc(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as i64;
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Civil from days: eras of 400 years that begin in March, so that a leap day is the last of its year.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

const STYLE: &str = include_str!("style.css");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        assert_eq!(utc(0.0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_400.0), "2000-02-29 00:00:00");
        assert_eq!(utc(1_796_037_389.006), "2026-11-30 11:16:29");
    }

    #[test]
    fn ratios_need_something_to_compare_with() {
        assert_eq!(ratio(3.0, 2.0), "1.50×");
        assert_eq!(ratio(300.0, 2.0), "150×");
        assert_eq!(ratio(3.0, 0.0), "–");
    }
}
