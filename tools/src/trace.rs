//! Traces in the FAST'25 format: one JSON object a line.
//!
//! `timestamp` (ms), `input_length` and `output_length` (tokens), `hash_ids` (the prefix block hashes of the input,
//! in order). Further fields are ignored. Timestamps need not be in order; line order is request order.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

/// The longest line that is read, in bytes: room for over a million block ids. It keeps a file
/// without line ends from filling the memory.
pub const MAX_LINE_BYTES: usize = 16 << 20;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Request {
    /// When it arrived, in ms.
    pub timestamp: u64,
    /// Tokens of its input.
    pub input_length: u64,
    /// Tokens of its output.
    pub output_length: u64,
    /// Ids of its input's blocks, in order. Equal ids are equal blocks.
    pub hash_ids: Vec<u64>,
}

/// What is wrong with a trace, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; `None` where the fault is the file's.
    pub line: Option<u64>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for TraceError {}

/// Reads a trace request by request. After an error it ends.
#[derive(Debug)]
pub struct TraceReader<R> {
    input: R,
    path: PathBuf,
    line: u64,
    buf: Vec<u8>,
    requests: u64,
    ended: bool,
}

impl TraceReader<BufReader<File>> {
    /// Opens a trace file.
    ///
    /// # Errors
    /// The file can't be opened, or is a directory.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let error = |what: String| TraceError {
            path: path.to_owned(),
            line: None,
            what,
        };
        let file = File::open(path).map_err(|e| error(e.to_string()))?;
        if file.metadata().is_ok_and(|m| m.is_dir()) {
            return Err(error("is a directory, not a trace".into()));
        }
        Ok(Self::new(BufReader::new(file), path))
    }
}

impl<R: BufRead> TraceReader<R> {
    /// Reads from `input`; `path` is its name in errors.
    pub fn new(input: R, path: &Path) -> Self {
        Self {
            input,
            path: path.to_owned(),
            line: 0,
            buf: Vec::new(),
            requests: 0,
            ended: false,
        }
    }

    fn error(&self, line: Option<u64>, what: impl Into<String>) -> TraceError {
        TraceError {
            path: self.path.clone(),
            line,
            what: what.into(),
        }
    }

    /// Reads the next line into `buf`, without its line end; `false` at the end of the file.
    fn read_line(&mut self) -> Result<bool, TraceError> {
        self.buf.clear();
        let limit = MAX_LINE_BYTES as u64 + 1;
        let read = (&mut self.input)
            .take(limit)
            .read_until(b'\n', &mut self.buf);
        self.line += 1;
        match read {
            Err(e) => Err(self.error(Some(self.line), format!("cannot be read: {e}"))),
            Ok(0) => Ok(false),
            Ok(_) if self.buf.len() > MAX_LINE_BYTES => Err(self.error(
                Some(self.line),
                format!("the line is longer than {MAX_LINE_BYTES} bytes"),
            )),
            Ok(_) => Ok(true),
        }
    }

    fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        // Blank lines are fine at the end of the file only.
        let mut blank = None;
        while self.read_line()? {
            if self.buf.trim_ascii().is_empty() {
                blank.get_or_insert(self.line);
                continue;
            }
            if blank.is_some() {
                return Err(self.error(blank, "blank line between requests"));
            }
            let request = parse(&self.buf).map_err(|what| self.error(Some(self.line), what))?;
            self.requests += 1;
            return Ok(Some(request));
        }
        if self.requests == 0 {
            return Err(self.error(None, "is empty: no requests"));
        }
        Ok(None)
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.next_request().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Parses one line.
///
/// # Errors
/// What is wrong, naming the field.
pub fn parse(line: &[u8]) -> Result<Request, String> {
    // Without the line end: columns are this line's.
    let text = std::str::from_utf8(line.trim_ascii_end())
        .map_err(|e| format!("not UTF-8 at byte {}", e.valid_up_to()))?;
    // serde would take an array for a struct, field by field.
    if !text.trim_start().starts_with('{') {
        return Err(match serde_json::from_str::<Value>(text) {
            Ok(other) => format!("expected a JSON object, found {}", kind(&other)),
            Err(e) => not_json(&e),
        });
    }
    serde_json::from_str(text).map_err(|e| explain(text, &e))
}

/// serde's messages don't name the field, so a bad line is looked at a second time.
fn explain(text: &str, error: &serde_json::Error) -> String {
    let object = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(object)) => object,
        Ok(_) => return error.to_string(),
        Err(e) => return not_json(&e),
    };
    for field in ["timestamp", "input_length", "output_length"] {
        match object.get(field) {
            None => return format!("{field}: missing"),
            Some(value) => {
                if let Some(fault) = not_whole(value) {
                    return format!("{field}: {fault}");
                }
            }
        }
    }
    match object.get("hash_ids") {
        None => "hash_ids: missing".into(),
        Some(Value::Array(ids)) => ids
            .iter()
            .enumerate()
            .find_map(|(i, id)| not_whole(id).map(|fault| format!("hash_ids[{i}]: {fault}")))
            .unwrap_or_else(|| match twice(text) {
                // The last one counts above, and is as it should be.
                Some(field) => format!("{field}: stands twice"),
                None => without_place(error),
            }),
        Some(other) => format!("hash_ids: expected an array, found {}", kind(other)),
    }
}

/// The first field of a request that the JSON object has twice.
fn twice(text: &str) -> Option<&'static str> {
    const FIELDS: [&str; 4] = ["timestamp", "input_length", "output_length", "hash_ids"];
    struct Names(Vec<String>);
    impl<'de> serde::Deserialize<'de> for Names {
        fn deserialize<D: serde::Deserializer<'de>>(object: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Names;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("an object")
                }

                fn visit_map<A: serde::de::MapAccess<'de>>(
                    self,
                    mut fields: A,
                ) -> Result<Names, A::Error> {
                    let mut names = Vec::new();
                    while let Some((name, serde::de::IgnoredAny)) = fields.next_entry()? {
                        names.push(name);
                    }
                    Ok(Names(names))
                }
            }
            object.deserialize_map(Visitor)
        }
    }
    let Names(names) = serde_json::from_str(text).ok()?;
    let count = |field: &str| names.iter().filter(|name| *name == field).count();
    FIELDS.into_iter().find(|field| count(field) > 1)
}

fn not_json(error: &serde_json::Error) -> String {
    format!(
        "not JSON: {} at column {}",
        without_place(error),
        error.column()
    )
}

/// serde's message without its own line number, which is always 1.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

fn not_whole(value: &Value) -> Option<String> {
    match value {
        Value::Number(n) if n.is_u64() => None,
        Value::Number(n) if n.as_f64().is_some_and(|x| x < 0.0) => Some(format!("{n} is negative")),
        Value::Number(n) => Some(format!("{n} is not a whole number below 2^64")),
        other => Some(format!("expected a whole number, found {}", kind(other))),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A trace in memory: what could be read, and the error that ended it.
///
/// A run needs the largest request before it starts, and the file may be a pipe, so it is read once and whole.
#[derive(Debug, Default)]
pub struct Trace {
    /// The requests in order, up to the first bad line.
    pub requests: Vec<Request>,
    /// What is wrong with the line after the last request, if anything.
    pub error: Option<TraceError>,
}

impl Trace {
    /// Reads at most `limit` requests.
    pub fn load(path: &Path, limit: Option<usize>) -> Self {
        match TraceReader::open(path) {
            Ok(reader) => Self::read(reader, limit),
            Err(error) => Self {
                requests: Vec::new(),
                error: Some(error),
            },
        }
    }

    fn read<R: BufRead>(reader: TraceReader<R>, limit: Option<usize>) -> Self {
        let mut trace = Self::default();
        for next in reader.take(limit.unwrap_or(usize::MAX)) {
            match next {
                Ok(request) => trace.requests.push(request),
                Err(error) => trace.error = Some(error),
            }
        }
        trace
    }

    /// Blocks of all requests.
    pub fn blocks(&self) -> u64 {
        self.requests.iter().map(|r| r.hash_ids.len() as u64).sum()
    }

    /// Blocks of the largest request.
    pub fn largest_request(&self) -> usize {
        self.requests
            .iter()
            .map(|r| r.hash_ids.len())
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        r#"{"timestamp": 3, "input_length": 700, "output_length": 9, "hash_ids": [0, 7]}"#;

    fn read(text: &[u8]) -> Trace {
        Trace::read(TraceReader::new(text, Path::new("t.jsonl")), None)
    }

    fn first_error(text: &str) -> String {
        read(text.as_bytes()).error.expect("an error").to_string()
    }

    #[test]
    fn a_good_line_is_read() {
        let trace = read(format!("{GOOD}\n{GOOD}").as_bytes());
        assert_eq!(trace.error, None);
        let want = Request {
            timestamp: 3,
            input_length: 700,
            output_length: 9,
            hash_ids: vec![0, 7],
        };
        assert_eq!(trace.requests, [want.clone(), want]);
        assert_eq!((trace.blocks(), trace.largest_request()), (4, 2));
    }

    #[test]
    fn harmless_variants_are_read() {
        for text in [
            format!("{GOOD}\n"),
            format!("{GOOD}\n\n \t\n"),
            format!("{GOOD}\r\n{GOOD}\r\n"),
            GOOD.replace("[0, 7]", "[]"),
            GOOD.replace("[0, 7]", "[18446744073709551615]"),
            GOOD.replace("\"timestamp\"", "\"extra\": {\"a\": -1}, \"timestamp\""),
        ] {
            let trace = read(text.as_bytes());
            assert_eq!(trace.error, None, "{text}");
            assert!(!trace.requests.is_empty(), "{text}");
        }
    }

    #[test]
    fn bad_lines_are_named_with_field_and_line() {
        let cases = [
            (GOOD.replace("3,", "-3,"), "timestamp: -3 is negative"),
            (
                GOOD.replace("3,", "3.5,"),
                "timestamp: 3.5 is not a whole number below 2^64",
            ),
            (
                GOOD.replace("3,", "18446744073709551616,"),
                "timestamp: 1.8446744073709552e+19 is not a whole number below 2^64",
            ),
            (
                GOOD.replace("700", "\"700\""),
                "input_length: expected a whole number, found a string",
            ),
            (
                GOOD.replace("9,", "null,"),
                "output_length: expected a whole number, found null",
            ),
            (
                GOOD.replace("output_length", "outputs"),
                "output_length: missing",
            ),
            (GOOD.replace("hash_ids", "ids"), "hash_ids: missing"),
            (
                GOOD.replace("[0, 7]", "7"),
                "hash_ids: expected an array, found a number",
            ),
            (GOOD.replace("7]", "-7]"), "hash_ids[1]: -7 is negative"),
            (
                GOOD.replace("7]", "true]"),
                "hash_ids[1]: expected a whole number, found a boolean",
            ),
            (
                GOOD.replace("{", "{\"timestamp\": 1, "),
                "timestamp: stands twice",
            ),
            (
                "[3, 700, 9, [0, 7]]".into(),
                "expected a JSON object, found an array",
            ),
            ("17".into(), "expected a JSON object, found a number"),
            ("hello".into(), "not JSON: expected value at column 1"),
            (
                GOOD.replace("}", ""),
                "not JSON: EOF while parsing an object at column 76",
            ),
            (
                format!("{GOOD} x"),
                "not JSON: trailing characters at column 79",
            ),
            (
                GOOD.replace("{", r#"{"hash_ids": 0, "#),
                "hash_ids: stands twice",
            ),
        ];
        for (line, what) in cases {
            let text = format!("{GOOD}\n{line}\n{GOOD}\n");
            assert_eq!(first_error(&text), format!("t.jsonl:2: {what}"), "{line}");
            assert_eq!(read(text.as_bytes()).requests.len(), 1, "{line}");
        }
    }

    #[test]
    fn a_blank_line_between_requests_is_an_error_of_its_own_line() {
        let text = format!("{GOOD}\n\n\n{GOOD}\n");
        assert_eq!(first_error(&text), "t.jsonl:2: blank line between requests");
    }

    #[test]
    fn a_file_without_requests_is_an_error() {
        for text in ["", "\n", "  \n\n"] {
            assert_eq!(first_error(text), "t.jsonl: is empty: no requests");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_an_error() {
        let mut text = GOOD.as_bytes().to_vec();
        text.extend(b"\n{\"a\": \"\xff\"}\n");
        let error = read(&text).error.expect("an error");
        assert_eq!(error.to_string(), "t.jsonl:2: not UTF-8 at byte 7");
    }

    #[test]
    fn an_endless_line_is_an_error() {
        let endless = BufReader::new(std::io::repeat(b'1'));
        let mut reader = TraceReader::new(endless, Path::new("t"));
        let error = reader.next().expect("an answer").expect_err("an error");
        assert_eq!(
            error.to_string(),
            "t:1: the line is longer than 16777216 bytes"
        );
        assert!(reader.next().is_none());
    }

    #[test]
    fn files_that_are_none_are_errors() {
        let error = |path: &str| {
            Trace::load(Path::new(path), None)
                .error
                .map(|e| e.to_string())
        };
        assert_eq!(
            error(env!("CARGO_MANIFEST_DIR")),
            Some(concat!(env!("CARGO_MANIFEST_DIR"), ": is a directory, not a trace").into())
        );
        assert_eq!(
            error("/no/such/trace"),
            Some("/no/such/trace: No such file or directory (os error 2)".into())
        );
    }

    #[test]
    fn a_limit_ends_the_reading_before_a_bad_line() {
        let text = format!("{GOOD}\nbad\n");
        let reader = TraceReader::new(text.as_bytes(), Path::new("t"));
        let trace = Trace::read(reader, Some(1));
        assert_eq!((trace.requests.len(), trace.error), (1, None));
    }
}
