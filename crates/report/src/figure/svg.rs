//! A drawing as SVG 1.1.

use std::fmt::Write as _;

use crate::figure::draw::{Drawing, Mark, Spot, TEXT, TextAnchor};

/// The bytes of an SVG file, on a white ground, its size in points.
pub fn bytes(drawing: &Drawing) -> Vec<u8> {
    let (width, height) = (drawing.width, drawing.height);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}pt\" height=\"{height:.0}pt\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"Roboto, Helvetica, Arial, sans-serif\">\n<title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        escaped(&drawing.title)
    );
    for mark in &drawing.marks {
        // A String never fails.
        let _ = match mark {
            Mark::Line { spots, color, width, dash } => {
                let dash = match dash {
                    [] => String::new(),
                    dash => {
                        let lengths: Vec<String> = dash.iter().map(f64::to_string).collect();
                        format!(" stroke-dasharray=\"{}\"", lengths.join(" "))
                    }
                };
                writeln!(
                    out,
                    "<path d=\"M{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\" stroke-linejoin=\"round\"{dash}/>",
                    path(spots),
                    hex(*color)
                )
            }
            Mark::Area { spots, color, opacity } => {
                let opacity =
                    if *opacity < 1.0 { format!(" fill-opacity=\"{opacity}\"") } else { String::new() };
                writeln!(out, "<path d=\"M{}Z\" fill=\"{}\"{opacity}/>", path(spots), hex(*color))
            }
            Mark::Dot { at: (x, y), radius, color } => {
                writeln!(out, "<circle cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"{radius}\" fill=\"{}\"/>", hex(*color))
            }
            Mark::Text { at: (x, y), text, size, anchor, turned } => {
                let anchor = match anchor {
                    TextAnchor::Start => "start",
                    TextAnchor::Middle => "middle",
                    TextAnchor::End => "end",
                };
                let turn =
                    if *turned { format!(" transform=\"rotate(-90 {x:.2} {y:.2})\"") } else { String::new() };
                writeln!(
                    out,
                    "<text x=\"{x:.2}\" y=\"{y:.2}\" font-size=\"{size}\" text-anchor=\"{anchor}\" fill=\"{}\"{turn}>{}</text>",
                    hex(TEXT),
                    escaped(text)
                )
            }
        };
    }
    out += "</svg>\n";
    out.into_bytes()
}

fn path(spots: &[Spot]) -> String {
    spots.iter().map(|(x, y)| format!("{x:.2} {y:.2}")).collect::<Vec<String>>().join("L")
}

fn hex([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn escaped(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
