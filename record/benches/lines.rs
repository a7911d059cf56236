use record::{read::Reader, sample::Sample, splice};
use std::time::Instant;
fn main() {
    let path = std::env::args().filter(|a| a.ends_with("jsonl")).next().unwrap();
    let bytes = std::fs::read(path).unwrap();
    for _ in 0..3 {
        let t = Instant::now();
        let mut reader = Reader::new("b", bytes.as_slice());
        let mut lines = vec![];
        while let Some(l) = reader.next().unwrap() {
            lines.push(l);
        }
        let s = t.elapsed().as_secs_f64();
        println!("read {:.0} MB/s", bytes.len() as f64 / s / 1e6);
        let t = Instant::now();
        let mut n = 0;
        for l in &lines {
            n += Sample::parse(l).map(|s| s.prompt_ids.unwrap().len()).unwrap_or(0);
        }
        let s = t.elapsed().as_secs_f64();
        println!("parse {:.0} MB/s {n}", bytes.len() as f64 / s / 1e6);
        let t = Instant::now();
        let mut n = 0;
        for l in &lines {
            n += splice::splice(&l.text, &[("group", "\"a\"".to_owned())]).unwrap().len();
        }
        let s = t.elapsed().as_secs_f64();
        println!("splice {:.0} MB/s {n}", bytes.len() as f64 / s / 1e6);
    }
}
