//! Pages in a browser: every kind of them is whole, on a desktop and on a phone, light and dark, and what a
//! reader can switch works.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::browser::{Browser, View};
use crate::fixture::{must, report};
use crate::made::Made;

const VIEWS: [View; 3] =
    [View { width: 1280, dark: false }, View { width: 1280, dark: true }, View { width: 390, dark: true }];

/// The page about these runs.
fn page(folder: &Path, name: &str, runs: &[PathBuf]) -> PathBuf {
    let page = folder.join(format!("{name}.html"));
    let mut arguments: Vec<&str> = runs.iter().map(|run| run.to_str().unwrap()).collect();
    arguments.extend(["--html", page.to_str().unwrap(), "--quiet"]);
    must(folder, &arguments);
    page
}

/// A page of every kind, by name.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let put = |name: &str, made: &Made| made.put(folder, name);
    let learns = Made::default();
    // A CPU's log-probabilities do not differ at all; no task is solved, every answer is cut, and a step
    // takes an hour.
    let stuck = Made {
        learns: false,
        cut: 1.0,
        seconds: 3600.0,
        settings: json!({"policies": "adapter-per-role", "model": "smollm2", "adapter": "rank=16,alpha=32"}),
        defaults: json!({"model": "tiny", "policies": "shared", "branches": "8"}),
        ..Made::default()
    };
    let minutes = Made { seconds: 1000.0, joint: true, steps: 2, ..Made::default() };
    let long =
        "a run with a name that goes on and on/until-it-is-wider-than-a-phone-is-and-has-no-blanks-in-it";
    let begun = put("begun", &Made { steps: 0, ..Made::default() });
    let mut several: Vec<PathBuf> = (1..=3)
        .map(|seed| {
            put(
                &format!("day-{seed}"),
                &Made { settings: json!({"seed": seed.to_string()}), ..learns.clone() },
            )
        })
        .collect();
    let other =
        json!({"flags of advantage": "--estimator rloo --credit return --baseline none", "lr": "3e-4"});
    several.push(put(long, &Made { settings: other, steps: 8, ..learns.clone() }));
    let one = put("one", &learns);
    let stream = one.join("steps/000003/samples.jsonl");
    let rates: Vec<PathBuf> = (1..=16)
        .map(|lr| {
            let settings = json!({"lr": format!("{lr}e-4"), "seed": (lr % 2).to_string()});
            put(&format!("rate-{lr}"), &Made { settings, steps: 2, ..learns.clone() })
        })
        .collect();
    let mut pages = vec![
        page(folder, "many", &rates),
        page(folder, "several", &several),
        page(folder, "seeds", &several[..3]),
    ];
    let alone = [
        ("one", one),
        ("stuck", put("stuck", &stuck)),
        ("minutes", put("minutes", &minutes)),
        ("begun", begun),
        ("stream", stream),
    ];
    pages.extend(alone.into_iter().map(|(name, run)| page(folder, name, &[run])));
    pages.push(page(folder, "long", &[put("long", &Made { steps: 300, ..Made::default() })]));
    pages
}

#[test]
fn pages_of_every_kind_are_whole_in_a_browser() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut faults = Vec::new();
    for page in pages(folder.path()) {
        for view in VIEWS {
            browser.open(&page, view);
            let name = page.file_stem().expect("a name").to_string_lossy().into_owned();
            let mut found = browser.complaints();
            let audit = browser.run(include_str!("audit.js"));
            found.extend(audit.as_array().expect("a list").iter().map(Value::to_string));
            faults.extend(found.into_iter().map(|fault| format!("{name}, {view:?}: {fault}")));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// An audit must find a planted fault, or it proves nothing.
#[test]
fn audit_finds_planted_faults() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = page(folder.path(), "one", &[Made::default().put(folder.path(), "one")]);
    for (harm, fault) in [
        ("document.querySelector('.plot text').setAttribute('x', -20)", "is cut"),
        (
            "document.querySelectorAll('.plot text')[1].setAttribute('y', document.querySelector('.plot text').getAttribute('y'))",
            "overlap",
        ),
        (
            "document.querySelector('.plot text').textContent = document.querySelectorAll('.plot text')[1].textContent",
            "repeated labels",
        ),
        ("document.querySelector('.plot path').setAttribute('d', 'MNaN 3')", "no number"),
        ("document.querySelector('.card').style.width = '20px'", "is cut by .card"),
        ("document.body.style.minWidth = '1600px'", "1600 wide"),
        ("document.querySelector('nav').style.width = '100px'", "NAV is cut"),
    ] {
        browser.open(&page, VIEWS[0]);
        browser.run(&format!("{harm}; ''"));
        let audit = browser.run(include_str!("audit.js")).to_string();
        assert!(audit.contains(fault), "{harm}: {audit}");
    }
    browser.open(&page, VIEWS[0]);
    browser.run("setTimeout(() => nothing.here); fetch('http://localhost:9/').catch(() => 0); new Promise(done => setTimeout(() => done(''), 300))");
    let complaints = browser.complaints().join("\n");
    assert!(
        complaints.contains("nothing is not defined")
            && complaints.contains("a request to http://localhost:9/"),
        "{complaints}"
    );
}

#[test]
fn page_switches_axes_curves_and_settings() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let defaults = json!({"lr": "5e-4", "branches": "8"});
    let run = Made { defaults, ..Made::default() }.put(folder.path(), "one");
    let page = page(folder.path(), "one", &[run]);
    browser.open(&page, VIEWS[0]);
    let labels = "[...document.querySelectorAll('[data-chart=agreement] .plot text')].map(text => text.textContent).join(' ')";
    let press = |text: &str| {
        format!(
            "[...document.querySelectorAll('button')].filter(one => one.textContent.startsWith({text:?})).forEach(one => one.click()); ''"
        )
    };
    assert!(browser.run(labels).as_str().expect("labels").contains("10⁻⁵"), "logarithmic at first");
    browser.run(&press("log"));
    let linear = browser.run(labels);
    assert!(
        linear.as_str().expect("labels").contains("·10⁻")
            || !linear.as_str().expect("labels").contains("10⁻⁵"),
        "{linear}"
    );
    let curves = "document.querySelectorAll('[data-chart=entropy] .plot path').length";
    let before = browser.run(curves);
    browser.run("const choice = document.querySelector('.smoothing select'); choice.value = 5; choice.dispatchEvent(new Event('change')); ''");
    assert_eq!((before, browser.run(curves)), (json!(2), json!(4)), "each curve with its mean of five steps");
    let rows = "[...document.querySelectorAll('.settings > *')].filter(row => row.offsetWidth).map(row => row.textContent.trim()).join('; ')";
    browser.run(&press("Only the 2 that differ"));
    assert_eq!(browser.run(rows), "branches2 default 8; lr1e-3 default 5e-4");
    assert_eq!(browser.run(include_str!("audit.js")), json!([]));
    assert_eq!(browser.complaints(), Vec::<String>::new());
    // The first stop of the keyboard leads to the episodes, whose list is one stop.
    assert_eq!(
        browser.run("document.querySelector('a, button, input, select').getAttribute('href')"),
        "#episodes"
    );
    assert_eq!(
        browser.run(
            "[...document.querySelectorAll('.rows [role=option]')].filter(row => row.tabIndex === 0).length"
        ),
        1
    );
    let down = "document.querySelector('.rows [tabindex=\"0\"]').focus(); document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown', bubbles: true})); \
                document.activeElement.getAttribute('aria-selected') + ' ' + location.hash.startsWith('#episode=')";
    assert_eq!(browser.run(down), "true true");
}

#[test]
fn page_exports_the_data_that_report_writes() {
    let Some(mut browser) = Browser::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let run = Made::default().put(folder.path(), "one");
    let page = page(folder.path(), "one", &[run]);
    browser.open(&page, VIEWS[1]);
    for (chart, of) in [("success", "DATA.success[0]"), ("flat-groups", "RUNS[0].groups[1]")] {
        // The data is written without matplotlib, too.
        report(folder.path(), &["one", "--figure", &format!("{chart}.svg"), "--quiet"]);
        let exported = browser.run(&format!("table({of}, opened({of}.series))"));
        let written = std::fs::read_to_string(folder.path().join(format!("{chart}.csv"))).unwrap();
        let numbers = |text: &str| -> Vec<Vec<String>> {
            let number =
                |cell: &str| cell.parse::<f64>().map_or(cell.to_owned(), |number| format!("{number:.5e}"));
            text.lines().map(|line| line.split(',').map(number).collect()).collect()
        };
        assert_eq!(numbers(exported.as_str().expect("a table")), numbers(&written), "{chart}");
    }
    let svg = browser.run("standalone(DATA.success[0], opened(DATA.success[0].series), false)");
    let svg = svg.as_str().expect("an SVG");
    assert!(svg.starts_with("<svg ") && !svg.contains("var(") && !svg.contains("color-mix"), "{svg}");
    for text in ["100 %", ">held out<", ">in training<", ">step<", "#0068a8"] {
        assert!(svg.contains(text), "no {text} in {svg}");
    }
    // A click makes the file.
    browser.run("const link = document.querySelector('.tools a[download]'); link.addEventListener('click', event => event.preventDefault()); link.click(); ''");
    assert!(browser.run("link.href").as_str().expect("an address").starts_with("blob:"));
}
