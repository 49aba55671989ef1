//! Reads records of visits from files of JSON lines, plain or compressed by gzip.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use flate2::bufread::MultiGzDecoder;
use oarlock_contract::visit_record::{MAX_RECORD_BYTES, VisitRecord};

use crate::commands::text_file::shown;

/// The records of one file.
pub(super) struct RecordFile {
    name: String,
    reader: Box<dyn BufRead>,
    line: usize,
}

impl RecordFile {
    /// Opens a file; `-` is standard input.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let name = shown(path);
        if path == Path::new("-") {
            return Self::of(name, std::io::stdin());
        }
        let file = std::fs::File::open(path).with_context(|| {
            format!(
                "cannot read the records in {name}: name files of JSON lines, as `oarlock plugin record` prints them"
            )
        })?;
        Self::of(name, file)
    }

    fn of(name: String, reader: impl Read + 'static) -> anyhow::Result<Self> {
        let mut reader = BufReader::new(reader);
        let begin = reader.fill_buf().with_context(|| format!("cannot read the records in {name}"))?;
        let reader: Box<dyn BufRead> = match begin.starts_with(&[0x1f, 0x8b]) {
            true => Box::new(BufReader::new(MultiGzDecoder::new(reader))),
            false => Box::new(reader),
        };
        Ok(Self { name, reader, line: 0 })
    }

    /// Returns the next record with the number of its line. Holds at most one line of the longest record.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<(usize, Arc<VisitRecord>)>> {
        loop {
            let mut line = Vec::new();
            let most = MAX_RECORD_BYTES as u64 + 2;
            let read = self.reader.by_ref().take(most).read_until(b'\n', &mut line);
            self.line += 1;
            let place = || format!("{}, line {}", self.name, self.line);
            read.with_context(|| format!("{}: cannot read the record", place()))?;
            if line.is_empty() {
                return Ok(None);
            }
            let text = str::from_utf8(&line).with_context(|| format!("{}: the line is not UTF-8", place()));
            if line.len() as u64 >= most {
                bail!(
                    "{}: the line is longer than {} KiB, and no host writes such a record",
                    place(),
                    MAX_RECORD_BYTES >> 10
                );
            }
            let text = text?;
            if text.trim().is_empty() {
                continue;
            }
            let record = VisitRecord::parse(text).map_err(|error| anyhow::anyhow!("{}: {error}", place()))?;
            return Ok(Some((self.line, Arc::new(record))));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    const GOLDEN: &str = include_str!("../../../contract/src/visit_record.golden.json");

    fn lines(bytes: impl Read + 'static) -> anyhow::Result<Vec<usize>> {
        let mut file = RecordFile::of("f".to_owned(), bytes)?;
        let mut lines = Vec::new();
        while let Some((line, _)) = file.next()? {
            lines.push(line);
        }
        Ok(lines)
    }

    #[test]
    fn records_are_read_from_plain_and_compressed_lines() {
        let text = format!("{GOLDEN}\n\n{GOLDEN}");
        assert_eq!(lines(std::io::Cursor::new(text.clone())).unwrap(), [1, 4]);
        let mut twice = Vec::new();
        for _ in 0..2 {
            let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
            gzip.write_all(GOLDEN.as_bytes()).unwrap();
            twice.extend(gzip.finish().unwrap());
        }
        assert_eq!(lines(std::io::Cursor::new(twice)).unwrap(), [1, 2]);
        assert!(lines(std::io::empty()).unwrap().is_empty());
    }

    #[test]
    fn a_line_of_a_gibibyte_is_refused_without_reading_it_whole() {
        let error = lines(std::io::repeat(b'{').take(1 << 30)).unwrap_err().to_string();
        assert_eq!(error, "f, line 1: the line is longer than 256 KiB, and no host writes such a record");
    }

    #[test]
    fn a_truncated_file_names_its_line() {
        let cut = format!("{GOLDEN}{}", &GOLDEN[..200]);
        let error = lines(std::io::Cursor::new(cut)).unwrap_err().to_string();
        assert!(error.starts_with("f, line 2: the record is truncated after 200 bytes"), "{error}");
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(GOLDEN.as_bytes()).unwrap();
        let mut bytes = gzip.finish().unwrap();
        bytes.truncate(bytes.len() - 12);
        let error = lines(std::io::Cursor::new(bytes)).unwrap_err().to_string();
        assert!(error.starts_with("f, line 1: "), "{error}");
        assert!(lines(std::io::Cursor::new(b"\xff\n")).unwrap_err().to_string().contains("not UTF-8"));
    }
}
