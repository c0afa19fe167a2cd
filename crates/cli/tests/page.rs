//! The page of `report` in a browser: built with the feature `chromium`, because a machine without a browser cannot run it.

#[path = "support/browser.rs"]
mod browser;
#[path = "support/snapshot.rs"]
mod snapshot;
mod support;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use browser::Browser;
use serde_json::Value;
use support::expect_both;

/// Tests that measure times have the machine to themselves, as far as this program decides.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A network, its plan, a training, a memory snapshot and a table of buffers, each as a page.
const PAGES: [&str; 5] = ["trace.html", "plan.html", "run.html", "snapshot.html", "table.html"];

/// Writes the pages, and what `--json` prints of the same.
fn pages(at: &Path) {
    expect_both(at, "trace --model resnet20 --batch 2 --image 16 -o r.trace", 0);
    expect_both(at, "plan r.trace --memory 50% --evaluations 5 -o r.plan", 0);
    let train = "train --model resnet20 --batch 2 --image 16 --iterations 4 --memory 60% --evaluations 20 --report r.run --json";
    std::fs::write(at.join("train.json"), expect_both(at, train, 0).0).unwrap();
    std::fs::write(at.join("s.pickle"), snapshot::of_blocks(3)).unwrap();
    let table: Vec<String> = (0..40).map(|i| format!("b{i},{},{},{}\n", i, i + 5, 64 * (i + 1))).collect();
    std::fs::write(at.join("t.csv"), format!("id,lower,upper,size\n{}", table.concat())).unwrap();
    for (page, files) in
        PAGES.iter().zip(["r.trace", "r.trace r.plan", "r.run", "s.pickle", "t.csv --align 64"])
    {
        let figures = expect_both(at, &format!("report {files} --time 300ms --json -o {page}"), 0).0;
        std::fs::write(at.join(page).with_extension("json"), figures).unwrap();
    }
}

fn url(at: &Path, page: &str) -> String {
    format!("file://{}", at.join(page).display())
}

/// Where the chart has a tensor: the middle of the bar of the most bytes.
const LARGEST: &str = "(() => { scrollTo(0, canvas.getBoundingClientRect().top + scrollY - 20); draw();
    const i = r.bytes.indexOf(Math.max(...r.bytes)), box = canvas.getBoundingClientRect(), { arena } = layout();
    const px = x((Math.max(r.start[i], from) + Math.min(r.end[i], to)) / 2);
    const py = arena[1] - (r.offset[i] + r.bytes[i] / 2) / arenaTop * (arena[1] - arena[0]);
    return [box.left + px, box.top + py]; })()";

#[test]
fn a_user_can_click_hover_zoom_pan_find_and_use_the_keyboard() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    pages(at);
    let mut browser = Browser::start(at);
    for page in PAGES {
        browser.open(&url(at, page), 1280, 800);
        let text = |browser: &mut Browser, id: &str| {
            browser.run(&format!("byId({id:?}).textContent")).as_str().unwrap().to_owned()
        };
        assert!(browser.run("byId('figures').children.length").as_u64().unwrap() >= 6, "{page}");
        let largest = browser.run(LARGEST);
        let point = [0, 1].map(|i| largest[i].as_f64().unwrap());
        browser.point(point, false);
        let name = browser.run("name(r.bytes.indexOf(Math.max(...r.bytes)))").as_str().unwrap().to_owned();
        assert_eq!(browser.run("byId('hover').hidden"), false, "{page}");
        browser.point(point, true);
        assert!(text(&mut browser, "details").contains("at offset"), "{page}: {name}");
        // The click gave the chart the focus.
        let first = text(&mut browser, "details");
        browser.key(".");
        assert_ne!(text(&mut browser, "details"), first, "{page}");
        browser.key(",");
        assert_eq!(text(&mut browser, "details"), first, "{page}");
        browser.key("+");
        assert_eq!(browser.run("to - from < total"), true, "{page}");
        browser.key("ArrowRight");
        browser.key("ArrowLeft");
        browser.key("ArrowRight");
        assert_eq!(browser.run("from > 0"), true, "{page}");
        browser.key("0");
        assert_eq!(browser.run("from === 0 && to === total"), true, "{page}");
        browser.wheel(point, -200.0);
        browser.run("new Promise(drawn => requestAnimationFrame(() => setTimeout(drawn, 50)))");
        assert_eq!(browser.run("to - from < total"), true, "{page}");
        // `/` goes to the search, from wherever the focus is.
        browser.key("/");
        assert_eq!(browser.run("document.activeElement.id"), "search", "{page}");
        for letter in name.chars().take(5) {
            browser.key(&letter.to_string());
        }
        let found = text(&mut browser, "found");
        assert!(found.contains(" found, ") && !found.starts_with('0'), "{page}: {found}");
        browser.key("Escape");
        assert_eq!(
            (text(&mut browser, "found"), text(&mut browser, "details")),
            Default::default(),
            "{page}"
        );
        for _ in 0..2 {
            let theme = browser.run("document.documentElement.dataset.theme");
            let ground = browser.run("getComputedStyle(document.body).backgroundColor");
            browser.run("byId('theme').click()");
            assert_ne!(browser.run("document.documentElement.dataset.theme"), theme, "{page}");
            assert_ne!(browser.run("getComputedStyle(document.body).backgroundColor"), ground, "{page}");
        }
        // Every control is reached by Tab, and the focus is visible.
        browser.run("document.activeElement.blur(), scrollTo(0, 0)");
        let mut reached = Vec::new();
        for _ in 0..14 {
            browser.key("Tab");
            let id = browser.run("document.activeElement.id").as_str().unwrap().to_owned();
            if ["theme", "search", "in", "out", "all", "map"].contains(&id.as_str()) {
                assert_eq!(
                    browser.run("getComputedStyle(document.activeElement).outlineStyle"),
                    "solid",
                    "{page}: {id}"
                );
                reached.push(id);
            }
        }
        for id in ["theme", "search", "in", "out", "all", "map"] {
            assert!(reached.iter().any(|reached| reached == id), "{page}: {id} is not among {reached:?}");
        }
        if page == "run.html" {
            browser.run("byId('course').click(), draw()");
            assert_eq!(browser.run("shown === measured"), true);
            assert_eq!(browser.run("byId('losses').querySelectorAll('polyline').length"), 1);
        }
        browser.expect_no_error();
    }
}

/// Every number of a value, as JSON writes it.
fn numbers(value: &Value, found: &mut Vec<f64>) {
    match value {
        Value::Number(number) => found.extend(number.as_f64()),
        Value::Array(elements) => elements.iter().for_each(|element| numbers(element, found)),
        Value::Object(fields) => fields.values().for_each(|field| numbers(field, found)),
        _ => {}
    }
}

/// What a figure's text says, and half of its last digit: `7.26 MiB` is 7612661.76 bytes within 5243.
fn said(text: &str) -> (f64, f64) {
    let text = text.replace(',', "");
    let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
    let unit = match unit {
        "GiB" => 1_073_741_824.0,
        "MiB" => 1_048_576.0,
        "KiB" => 1_024.0,
        "s" => 1e9,
        "ms" => 1e6,
        "µs" => 1e3,
        "%" => 0.01,
        "B" | "ns" | "" => 1.0,
        other => panic!("no unit: {other}"),
    };
    let digits = number.split_once('.').map_or(0, |(_, digits)| digits.len());
    (number.parse::<f64>().unwrap() * unit, 0.5000001 * unit * 10f64.powi(-(digits as i32)))
}

#[test]
fn every_figure_of_the_page_is_one_that_json_prints() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    pages(at);
    let mut browser = Browser::start(at);
    for page in PAGES {
        browser.open(&url(at, page), 1280, 800);
        let read = |name: &str| -> Value {
            serde_json::from_str(&std::fs::read_to_string(at.join(name)).unwrap()).unwrap()
        };
        let printed = read(&page.replace(".html", ".json"));
        let data = browser.run("byId('data').textContent");
        let own = serde_json::from_str::<Value>(data.as_str().unwrap()).unwrap()["why"].take();
        for (name, value) in own.as_object().unwrap() {
            assert_eq!(value, &printed[name], "{page}: {name}");
        }
        let mut known = Vec::new();
        numbers(&printed, &mut known);
        if page == "run.html" {
            // What the training itself printed.
            numbers(&read("train.json"), &mut known);
        }
        let figures = browser.run("[...document.querySelectorAll('data')].map(d => [d.value, d.textContent, (d.closest('dl > div, tr') ?? d.parentElement).textContent])");
        let figures = figures.as_array().unwrap();
        assert!(figures.len() > 20, "{page}");
        for figure in figures {
            let [value, text, around] = [0, 1, 2].map(|i| figure[i].as_str().unwrap());
            let number: f64 = value.parse().unwrap();
            let (shown, half) = said(text);
            assert!((shown - number).abs() <= half * 1.01, "{page}: {text} for {value}");
            let exists = known.iter().any(|known| (known - number).abs() <= 1e-12 * number.abs());
            // Not in the file of a training: the iterations that it ran are the sum of two figures.
            let sum = page == "run.html" && around.contains(" iterations in batches");
            assert!(exists || sum, "{page}: {around}: {value}");
        }
        // No bytes or times stand outside of figures and of sentences that are part of the object.
        let rest = browser.run("(() => { const copy = document.querySelector('main').cloneNode(true);
            copy.querySelectorAll('data, #suggestions, #map, svg').forEach(e => e.remove()); return copy.textContent; })()");
        let rest = rest.as_str().unwrap();
        for unit in ["GiB", "MiB", "KiB", " ms", " µs", " %"] {
            assert!(!rest.contains(unit), "{page}: {unit} in {rest}");
        }
    }
}

/// A table of 50,000 buffers with their own offsets.
fn large_table() -> String {
    use std::fmt::Write;
    let (mut table, mut state, mut offset) = ("id,lower,upper,size,offset\n".to_owned(), 1u64, 0);
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for slot in 0..500 {
        let size = [512, 4096, 65536, 1 << 20][random(4) as usize];
        let mut at = random(50);
        for i in 0..100 {
            let until = at + 1 + random(900);
            let _ = writeln!(table, "layer{slot}.conv{i}.weight,{at},{until},{size},{offset}");
            at = until + random(50);
        }
        offset += size;
    }
    table
}

#[test]
fn fifty_thousand_residencies_open_at_once_and_pan_smoothly() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("large.csv"), large_table()).unwrap();
    expect_both(at, "report large.csv --time 1s -o large.html", 0);
    let size = at.join("large.html").metadata().unwrap().len();
    assert!(size < 5_000_000, "{size} bytes");
    let mut browser = Browser::start(at);
    // The first page that a browser opens waits for its processes.
    browser.open("about:blank", 1280, 800);
    let begun = Instant::now();
    browser.open(&url(at, "large.html"), 1280, 800);
    let opened = begun.elapsed();
    assert_eq!(browser.run("count"), 50_000);
    // The machine may do something else at the same time, so that the best of some rounds counts.
    let rounds = [0.0, 0.2, 0.4, 0.6].map(|_| {
        let frames = "(async () => { view(0, total / 3); const begun = performance.now();
            for (let i = 0; i < 40; i++) { view(from + total / 300, to + total / 300); await new Promise(r => requestAnimationFrame(r)); }
            return 40000 / (performance.now() - begun); })()";
        browser.run(frames).as_f64().unwrap()
    });
    let best = rounds.into_iter().fold(0.0, f64::max);
    println!("{size} bytes, open after {opened:?}, frames per second {rounds:.0?}");
    assert!(opened < Duration::from_secs(2), "{opened:?}");
    assert!(best >= 30.0, "{rounds:?}");
}

#[test]
fn a_snapshot_of_13_000_events_is_a_page_in_under_two_seconds() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("s.pickle"), snapshot::of_blocks(13_000 / snapshot::EVENTS_OF_A_BLOCK)).unwrap();
    let mut browser = Browser::start(at);
    browser.open("about:blank", 1280, 800);
    // The machine may do something else at the same time, so that the best of some rounds counts.
    let rounds = [0; 3].map(|_| {
        let begun = Instant::now();
        expect_both(at, "report s.pickle --time 500ms -o s.html", 0);
        browser.open(&url(at, "s.html"), 1280, 800);
        begun.elapsed()
    });
    println!("{} bytes, written and open after {rounds:?}", at.join("s.html").metadata().unwrap().len());
    assert!(rounds.iter().min() < Some(&Duration::from_secs(2)), "{rounds:?}");
}

/// Writes the pages of a comparison and of a figure of a paper.
fn compared(at: &Path) -> Value {
    expect_both(at, "trace --model resnet20 --batch 2 --image 16 -o r.trace", 0);
    let line = "compare r.trace --memory 30%..90% --steps 3 --evaluations 20 --planners keep,greedy,sqrt,auto --html c --json";
    expect_both(at, "reproduce chen-fig1 --quick -o papers", 0);
    serde_json::from_str(&expect_both(at, line, 0).0).unwrap()
}

#[test]
fn points_of_a_comparison_lead_to_the_pages_of_their_plans() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let printed = compared(at);
    let rows = printed["rows"].as_array().unwrap();
    let planned: Vec<&Value> = rows.iter().filter(|row| row["feasible"] == true).collect();
    assert!(planned.len() > 4 && planned.len() < rows.len(), "{printed}");
    let mut browser = Browser::start(at);
    browser.open(&url(at, "c/index.html"), 1280, 800);
    assert_eq!(browser.run("document.querySelectorAll('#tradeoff a').length"), planned.len());
    assert_eq!(browser.run("document.querySelectorAll('#tradeoff polygon').length"), 1, "the bound");
    // The table has the numbers of `--json`.
    let figures = browser.run("[...document.querySelectorAll('#rows tr')].slice(1).map(tr => [...tr.querySelectorAll('data')].map(d => [Number(d.value), d.textContent]))");
    let figures = figures.as_array().unwrap();
    assert_eq!(figures.len(), rows.len());
    for (shown, row) in figures.iter().zip(rows) {
        let fields =
            ["limit_bytes", "arena_bytes", "iteration_ns", "overhead", "lower_bound_ns", "recomputed_ops"];
        let numbers = fields.iter().filter_map(|field| row[field].as_f64());
        for (figure, number) in shown.as_array().unwrap().iter().zip(numbers) {
            assert_eq!(figure[0].as_f64(), Some(number), "{figure} in {row}");
        }
    }
    // A line can be hidden, and every point leads to a page with its plan's figures.
    browser.run("document.querySelector('[data-line=line-auto]').click()");
    assert_eq!(browser.run("getComputedStyle(document.getElementById('line-auto')).display"), "none");
    let pages = browser.run("[...document.querySelectorAll('#rows a')].map(a => a.getAttribute('href'))");
    let pages: Vec<&str> = pages.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(pages.len(), planned.len());
    for (page, row) in pages.iter().zip(planned) {
        browser.open(&url(at, &format!("c/{page}")), 1280, 800);
        for field in ["arena_bytes", "limit_bytes", "iteration_ns", "overhead"] {
            assert_eq!(
                browser.run(&format!("page.{field}")).as_f64(),
                row[field].as_f64(),
                "{page}: {field}"
            );
        }
    }
    browser.open(&url(at, "papers/chen-fig1.html"), 1280, 800);
    let reproduced: Value =
        serde_json::from_str(&std::fs::read_to_string(at.join("papers/reproduce.json")).unwrap()).unwrap();
    let count = browser.run("document.querySelectorAll('#rows tr').length").as_u64().unwrap() as usize;
    assert_eq!(count, 1 + reproduced.as_array().unwrap().len());
}

/// Findings of axe that matter: those that it calls serious or critical.
#[test]
#[ignore = "needs axe-core of npm: ELBOWROOM_AXE names its axe.min.js"]
fn an_accessibility_tool_finds_nothing_serious() {
    let axe = std::env::var_os("ELBOWROOM_AXE").expect("ELBOWROOM_AXE names axe.min.js of axe-core");
    let axe = std::fs::read_to_string(axe).unwrap();
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    pages(at);
    compared(at);
    let mut browser = Browser::start(at);
    for page in PAGES.iter().chain(&["c/index.html", "papers/chen-fig1.html"]) {
        for (width, height) in [(1280, 800), (390, 844)] {
            browser.open(&url(at, page), width, height);
            // Nothing is wider than a phone.
            assert_eq!(
                browser.run("document.documentElement.scrollWidth <= innerWidth"),
                true,
                "{page} {width}"
            );
            browser.run(&format!("{axe};0"));
            for _ in 0..2 {
                browser.run("document.getElementById('theme').click()");
                browser.run("typeof select === 'function' && select(0)");
                let found = browser.run("axe.run().then(r => r.violations.map(v => `${v.impact} ${v.id}: ${v.nodes.map(n => n.target)}`))");
                let found: Vec<&str> = found.as_array().unwrap().iter().filter_map(Value::as_str).collect();
                println!("{page} {width}: {found:?}");
                let matters = |line: &&&str| line.starts_with("serious") || line.starts_with("critical");
                assert_eq!(found.iter().filter(matters).count(), 0, "{page} {width}: {found:?}");
            }
        }
    }
}

/// Pictures that documents show.
const DOCUMENTED: [&str; 4] =
    ["page-resnet50-wide.png", "page-gpt-phone.png", "page-run-wide.png", "page-compare-wide.png"];

/// Pictures of pages for the documents.
#[test]
#[ignore = "takes minutes and writes docs/img; `just screenshots` runs it"]
fn screenshots() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let documents = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/img");
    // Pictures that no document shows are there to be looked at.
    let others = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = |name: &str| match DOCUMENTED.contains(&name) {
        true => documents.join(name),
        false => others.join(name),
    };
    println!("the other pictures are in {}", others.display());
    expect_both(at, "trace --model resnet50 --image 224 --batch 32 --machine v100 -o r50.trace", 0);
    expect_both(at, "plan r50.trace --memory 50% --evaluations 2000 -o r50.plan", 0);
    expect_both(at, "trace --model gpt --batch 8 --machine v100 -o gpt.trace", 0);
    expect_both(at, "plan gpt.trace --memory 30% --no-recompute --evaluations 2000 -o gpt.plan", 0);
    expect_both(
        at,
        "train --model resnet20 --batch 8 --iterations 40 --memory 50% --evaluations 100 --report run.json --json",
        0,
    );
    std::fs::write(at.join("s.pickle"), snapshot::of_blocks(12)).unwrap();
    std::fs::write(at.join("pack.csv"), large_table().lines().take(401).collect::<Vec<_>>().join("\n"))
        .unwrap();
    let mut browser = Browser::start(at);
    for (name, files, dark) in [
        ("resnet50", "r50.trace r50.plan", false),
        ("gpt", "gpt.trace gpt.plan", true),
        ("run", "run.json", false),
        ("snapshot", "s.pickle", false),
        ("packing", "pack.csv", true),
    ] {
        expect_both(at, &format!("report {files} --time 5s -o {name}.html"), 0);
        for (kind, width, height) in [("wide", 1280, 800), ("phone", 390, 844)] {
            browser.open(&url(at, &format!("{name}.html")), width, height);
            browser.run(&format!("dark = {dark}, paint(), scrollTo(0, byId('map-heading').getBoundingClientRect().top - 8), draw()"));
            browser.run("new Promise(drawn => requestAnimationFrame(() => setTimeout(drawn, 50)))");
            std::fs::write(path(&format!("page-{name}-{kind}.png")), browser.picture()).unwrap();
        }
    }
    expect_both(
        at,
        "compare r50.trace --memory 30%..100% --steps 6 --evaluations 200 --planners greedy,dynprog,sqrt,sublinear,rotor,dtr,auto --html r50",
        0,
    );
    for (kind, width, height) in [("wide", 1280, 800), ("phone", 390, 844)] {
        browser.open(&url(at, "r50/index.html"), width, height);
        std::fs::write(path(&format!("page-compare-{kind}.png")), browser.picture()).unwrap();
    }
}
