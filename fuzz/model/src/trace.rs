//! Traces: any bytes are requests up to the first fault, and that is told with its line and what is wrong there.

use std::path::Path;

use crate::reader::{Request, TraceReader, parse};

/// Takes any bytes as a trace.
///
/// # Panics
/// Where a promise of the reader is broken.
pub fn check(bytes: &[u8]) {
    let path = Path::new("a.jsonl");
    let lines: Vec<&[u8]> = bytes.split(|&b| b == b'\n').collect();
    let mut reader = TraceReader::new(bytes, path);
    let mut requests = 0;
    let error = loop {
        match reader.next() {
            Some(Ok(request)) => {
                assert_eq!(parse(lines[requests]), Ok(request.clone()));
                assert_eq!(parse(print(&request).as_bytes()), Ok(request));
                requests += 1;
            }
            Some(Err(error)) => break Some(error),
            None => break None,
        }
    };
    assert!(reader.next().is_none(), "it goes on after its end");
    let is_blank = |line: &&[u8]| line.trim_ascii().is_empty();
    let Some(error) = error else {
        assert!(requests > 0, "a trace without requests was accepted");
        assert!(lines[requests..].iter().all(is_blank));
        return;
    };
    assert!(error.to_string().starts_with("a.jsonl"));
    assert!(!error.what.is_empty());
    match error.line {
        None => assert!(requests == 0 && lines.iter().all(is_blank)),
        Some(line) => {
            // The first line that is no request.
            assert_eq!(line as usize, requests + 1, "{error}");
            let line = lines[requests];
            match is_blank(&line) {
                true => assert_eq!(error.what, "blank line between requests"),
                false => {
                    assert_eq!(parse(line), Err(error.what.clone()));
                    assert!(names_its_fault(line, &error.what), "{error}");
                }
            }
        }
    }
}

/// Whether the error of a JSON object names one of its fields.
fn names_its_fault(line: &[u8], what: &str) -> bool {
    const FIELDS: [&str; 4] = ["timestamp", "input_length", "output_length", "hash_ids"];
    let is_object = serde_json::from_slice::<serde_json::Map<_, _>>(line).is_ok();
    !is_object || FIELDS.iter().any(|field| what.contains(field))
}

fn print(request: &Request) -> String {
    let Request {
        timestamp,
        input_length,
        output_length,
        hash_ids,
    } = request;
    format!(
        r#"{{"timestamp": {timestamp}, "input_length": {input_length}, "output_length": {output_length}, "hash_ids": {hash_ids:?}}}"#
    )
}
