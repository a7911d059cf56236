//! A drawing as PDF 1.7: vectors, and texts in a font that is in the file, as publishers ask for. No date: the same drawing gives the
//! same bytes.

use std::collections::BTreeSet;

use pdf_writer::types::{FontFlags, LineCapStyle, LineJoinStyle};
use pdf_writer::{Content, Finish, Name, Pdf, Rect, Ref, Str, TextStr};

use crate::figure::draw::{Drawing, Mark, Spot, TEXT, TextAnchor};
use crate::figure::text::{FONT, WIDTHS, encoded, width};

/// The font's bounding box, in thousandths of its size.
const BOX: Rect = Rect { x1: -34.0, y1: -242.0, x2: 917.0, y2: 946.0 };
const ASCENT: f32 = 928.0;
const DESCENT: f32 = -244.0;
const CAPITALS: f32 = 711.0;

/// The bytes of a PDF file of one page, as large as the drawing.
pub fn bytes(drawing: &Drawing) -> Vec<u8> {
    let [catalog, pages, page, content, font, descriptor, file] = [1, 2, 3, 4, 5, 6, 7].map(Ref::new);
    let mut pdf = Pdf::new();
    pdf.catalog(catalog).pages(pages);
    pdf.pages(pages).kids([page]).count(1);
    pdf.document_info(Ref::new(8)).title(TextStr(&drawing.title));
    let opacities: BTreeSet<u32> = drawing.marks.iter().filter_map(opacity).map(percent).collect();
    let mut one = pdf.page(page);
    one.parent(pages).contents(content);
    one.media_box(Rect::new(0.0, 0.0, drawing.width as f32, drawing.height as f32));
    let mut resources = one.resources();
    resources.fonts().pair(Name(b"F"), font);
    let mut states = resources.ext_g_states();
    for (place, percent) in opacities.iter().enumerate() {
        states.pair(Name(state(*percent).as_bytes()), Ref::new(9 + place as i32));
    }
    states.finish();
    resources.finish();
    one.finish();
    for (place, percent) in opacities.iter().enumerate() {
        pdf.ext_graphics(Ref::new(9 + place as i32)).non_stroking_alpha(*percent as f32 / 100.0);
    }
    let name = Name(b"TROUPE+Roboto-Regular");
    let mut simple = pdf.type1_font(font);
    simple.pair(Name(b"Subtype"), Name(b"TrueType"));
    simple.base_font(name).first_char(32).last_char(255).font_descriptor(descriptor);
    simple.widths(WIDTHS.iter().map(|width| f32::from(*width))).encoding_predefined(Name(b"WinAnsiEncoding"));
    simple.finish();
    let mut described = pdf.font_descriptor(descriptor);
    described.name(name).flags(FontFlags::NON_SYMBOLIC).bbox(BOX).italic_angle(0.0);
    described.ascent(ASCENT).descent(DESCENT).cap_height(CAPITALS).stem_v(88.0).font_file2(file);
    described.finish();
    pdf.stream(file, FONT).pair(Name(b"Length1"), FONT.len() as i32);
    pdf.stream(content, &drawn(drawing));
    pdf.finish()
}

fn drawn(drawing: &Drawing) -> Vec<u8> {
    let mut content = Content::new();
    content.set_line_join(LineJoinStyle::RoundJoin).set_line_cap(LineCapStyle::ButtCap);
    // The drawing counts from the top, a page from its bottom.
    let flipped = |(x, y): Spot| (x as f32, (drawing.height - y) as f32);
    for mark in &drawing.marks {
        match mark {
            Mark::Line { spots, color, width, dash } => {
                stroke(&mut content, *color);
                content.set_line_width(*width as f32);
                content.set_dash_pattern(dash.iter().map(|length| *length as f32), 0.0);
                follow(&mut content, spots.iter().map(|spot| flipped(*spot)));
                content.stroke();
            }
            Mark::Area { spots, color, opacity } => {
                content.save_state();
                if *opacity < 1.0 {
                    content.set_parameters(Name(state(percent(*opacity)).as_bytes()));
                }
                fill(&mut content, *color);
                follow(&mut content, spots.iter().map(|spot| flipped(*spot)));
                content.close_path().fill_nonzero().restore_state();
            }
            Mark::Dot { at, radius, color } => {
                fill(&mut content, *color);
                circle(&mut content, flipped(*at), *radius as f32);
                content.fill_nonzero();
            }
            Mark::Text { at, text, size, anchor, turned } => {
                let before = match anchor {
                    TextAnchor::Start => 0.0,
                    TextAnchor::Middle => width(text, *size) / 2.0,
                    TextAnchor::End => width(text, *size),
                };
                let (x, y) = flipped(*at);
                let before = before as f32;
                let place = if *turned {
                    [0.0, 1.0, -1.0, 0.0, x, y - before]
                } else {
                    [1.0, 0.0, 0.0, 1.0, x - before, y]
                };
                fill(&mut content, TEXT);
                content.begin_text().set_font(Name(b"F"), *size as f32).set_text_matrix(place);
                content.show(Str(&encoded(text))).end_text();
            }
        }
    }
    content.finish().to_vec()
}

fn opacity(mark: &Mark) -> Option<f64> {
    match mark {
        Mark::Area { opacity, .. } if *opacity < 1.0 => Some(*opacity),
        _ => None,
    }
}

fn percent(opacity: f64) -> u32 {
    (100.0 * opacity).round() as u32
}

fn state(percent: u32) -> String {
    format!("A{percent}")
}

fn rgb(color: [u8; 3]) -> [f32; 3] {
    color.map(|part| f32::from(part) / 255.0)
}

fn stroke(content: &mut Content, color: [u8; 3]) {
    let [red, green, blue] = rgb(color);
    content.set_stroke_rgb(red, green, blue);
}

fn fill(content: &mut Content, color: [u8; 3]) {
    let [red, green, blue] = rgb(color);
    content.set_fill_rgb(red, green, blue);
}

fn follow(content: &mut Content, spots: impl Iterator<Item = (f32, f32)>) {
    for (place, (x, y)) in spots.enumerate() {
        if place == 0 {
            content.move_to(x, y)
        } else {
            content.line_to(x, y)
        };
    }
}

/// Four Bézier curves; 0.5523 of the radius brings each within 0.03 % of the arc.
fn circle(content: &mut Content, (x, y): (f32, f32), radius: f32) {
    let c = 0.5523 * radius;
    content.move_to(x + radius, y);
    content.cubic_to(x + radius, y + c, x + c, y + radius, x, y + radius);
    content.cubic_to(x - c, y + radius, x - radius, y + c, x - radius, y);
    content.cubic_to(x - radius, y - c, x - c, y - radius, x, y - radius);
    content.cubic_to(x + c, y - radius, x + radius, y - c, x + radius, y);
}
