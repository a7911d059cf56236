//! A role that an OpenAI-compatible server plays, against a test server that fails on purpose.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use troupe_tests::program::lines;
use troupe_tests::server::{Asked, Behavior, Reply, StandInServer, closed_port};
use troupe_tests::{must, pipeline, root, run, shell, skip};

/// A policy for the tool, tasks, and a directory for them.
fn fixture() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display().to_string();
    must(&format!(
        "policy init {dir}/tool --preset tiny --seed 3 2>&1; envs tasks plan-path --count 6 --seed 5 > {dir}/tasks"
    ));
    (folder, dir)
}

fn rollout(dir: &str, planner: &str) -> String {
    format!(
        "OPENAI_API_KEY=secret rollout --policy tool={dir}/tool --policy 'planner={planner}' --branches 4 --turns 2 --max-tokens 8 \
         --seed 7 --quiet < {dir}/tasks"
    )
}

/// Answers, but not at first: overload, a lost connection, and another status that passes.
fn moody(count: usize, body: &Value) -> Reply {
    let seed = body["seed"].as_u64().expect("a seed");
    match (count, seed % 4) {
        (0, 0) => Reply::Status(503, "Retry-After: 0\r\n", "busy"),
        (0, 1) => Reply::Drop,
        (0, 2) => Reply::Status(429, "Retry-After: 0.01\r\n", r#"{"error": {"message": "slow down"}}"#),
        _ if seed.is_multiple_of(3) => Reply::Text("d3 c3"),
        _ => Reply::Text("no move at all"),
    }
}

#[test]
fn a_served_role_plays_and_the_others_are_trained() {
    let (_folder, dir) = fixture();
    let server = StandInServer::start(&["large"], moody);
    let play = rollout(&dir, &server.url);
    let samples = must(&format!("{play} --threads 1 | tee {dir}/played | group --quiet | advantage --quiet"));
    let lines = lines(&samples);
    let of_type = |kind: &str| lines.iter().filter(|line| line["type"] == kind).collect::<Vec<_>>();
    let (samples, served) = (of_type("sample"), of_type("served"));
    assert!(
        samples.len() >= 24
            && samples.iter().all(|sample| sample["agent"] == "tool" && sample["advantage"].is_number())
    );
    assert!(served.len() >= 6);
    for line in &served {
        assert_eq!(
            (&line["agent"], &line["model"], &line["selected"]),
            (&json!("planner"), &json!("large"), &json!(true))
        );
        assert_eq!((&line["prompt_tokens"], &line["completion_tokens"]), (&json!(11), &json!(3)));
        assert!(line["reward"].is_number() && line["prompt"].is_array() && line["completion_ids"].is_null());
        assert!(line["group"].is_null() && line["advantage"].is_null(), "nothing is compared with it");
    }
    // Counted in the end line of rollout, apart from the trained agents.
    let played = must(&format!("tail -n 1 {dir}/played"));
    let counts = serde_json::from_str::<Value>(&played).expect("an end")["counts"].clone();
    assert_eq!(counts["samples"], json!(samples.len()));
    let planner = &counts["served"]["planner"];
    assert_eq!(
        (&planner["samples"], &planner["completion_tokens"]),
        (&json!(served.len()), &json!(3 * served.len()))
    );
    assert_eq!(
        (&planner["prompt_tokens"], &counts["agents"]["planner"]),
        (&json!(11 * served.len()), &Value::Null)
    );

    // What it was asked: as OpenAI's clients ask, and again where a call failed in a way that passes.
    let asked = server.asked("/v1/chat/completions");
    assert!(asked.len() > served.len(), "nothing was repeated");
    for Asked { key, body, .. } in &asked {
        assert_eq!(key, "Bearer secret");
        assert_eq!(
            (&body["model"], &body["max_tokens"], &body["temperature"]),
            (&json!("large"), &json!(8), &json!(1.0))
        );
        assert!(body["messages"][0]["content"].is_string());
    }

    // Equal bytes for any number of threads, if the server gives equal answers.
    let text = |command: &str| must(&format!("{command} | grep -v '\"type\":\"end\"'"));
    let again = StandInServer::start(&["large"], moody);
    let port = |server: &StandInServer| server.url.rsplit(':').next().expect("a port").to_owned();
    let [first, second] = [(1, &server), (3, &again)].map(|(threads, server)| {
        text(&format!("{} --threads {threads}", rollout(&dir, &server.url))).replace(&port(server), "PORT")
    });
    assert_eq!(first, second);

    // update trains the tool and lets the rest pass; it cannot train the planner.
    must(&format!(
        "group --quiet < {dir}/played | advantage --quiet | update --policy tool={dir}/tool --quiet"
    ));
    assert!(must(&format!("readlink {dir}/tool/current")).starts_with("step-000001"));
    let (code, _, told) = run(&format!("update --policy planner={} < {dir}/played", server.url));
    assert_eq!(
        (code, told.contains("a server's policy is not trained\nhint: leave it out")),
        (2, true),
        "{told}"
    );
}

#[test]
fn settings_of_the_url_and_parallel_sampling() {
    let (_folder, dir) = fixture();
    let server = StandInServer::start(&["a", "b"], |_, _| Reply::Text("d3"));
    let url =
        format!("{}?model=b&max_completion_tokens=300&temperature=0.2&api_key_var=OTHER_KEY", server.url);
    let played = must(&format!("export OTHER_KEY=\" other\n\"; {} --sampling parallel", rollout(&dir, &url)));
    let served = played.lines().filter(|line| line.contains(r#""type":"served""#)).count();
    let asked = server.asked("/v1/chat/completions");
    assert_eq!(asked.len(), served);
    // Each of the four episodes of a task calls the server with another seed.
    assert!(served >= 24, "{served}");
    let body = &asked[0].body;
    assert_eq!(
        (&body["model"], &body["max_completion_tokens"], &body["max_tokens"], &body["temperature"]),
        (&json!("b"), &json!(300), &Value::Null, &json!(0.2))
    );
    assert!(asked.iter().all(|asked| asked.key == "Bearer other"));
    assert!(server.asked("/v1/models").is_empty());
    // A team that is served as a whole is evaluated.
    let alone = format!("rollout --policy '{}?model=a' --greedy --turns 1 --quiet < {dir}/tasks", server.url);
    let end: Value = serde_json::from_str(must(&alone).lines().last().expect("an end")).expect("JSON");
    assert_eq!(
        (&end["ok"], &end["counts"]["samples"], &end["counts"]["episodes"]),
        (&json!(true), &json!(0), &json!(6))
    );
    assert_eq!(server.asked("/v1/chat/completions").last().expect("a call").body["temperature"], json!(0.0));
}

#[test]
fn a_server_gets_the_sampling_of_its_agent() {
    let (_folder, dir) = fixture();
    let server = StandInServer::start(&["large"], |_, _| Reply::Text("d3"));
    let url = &server.url;
    must(&format!(
        "rollout --policy tool={dir}/tool --policy 'planner={url}' --branches 2 --turns 1 --max-tokens 8 --temperature 0.5 --quiet \
         --temperature planner=1.5 --max-tokens planner=9 --top-p planner=0.75 --min-p planner=0.25 --stop 'planner=</plan>' < {dir}/tasks"
    ));
    let asked = server.asked("/v1/chat/completions");
    let body = &asked.first().expect("a call").body;
    let found = ["temperature", "max_tokens", "top_p", "min_p", "stop"].map(|key| body[key].clone());
    assert_eq!(found, [json!(1.5), json!(9), json!(0.75), json!(0.25), json!(["</plan>"])]);
    assert_eq!((&body["top_k"], &body["tools"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_run_trains_beside_a_server_and_goes_on() {
    let (_folder, dir) = fixture();
    let server = StandInServer::start(&["large"], moody);
    let folder = Path::new(&dir);
    let policies = [format!("tool={dir}/tool"), format!("planner={}", server.url)];
    let play = |name: &str, steps: &str| {
        let [tool, planner] = &policies;
        let flags =
            ["--policies", tool, "--policies", planner, "--steps", steps, "--tasks", "4", "--turns", "2"];
        let more = ["--max-tokens", "8", "--eval-tasks", "3", "--eval-every", "2", "--kl", "0.01"];
        let output =
            pipeline(&folder.join(name), &[&flags[..], &more].concat()).output().expect("pipeline.sh runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    play("whole", "2");
    play("parts", "1");
    play("parts", "2");
    assert!(must(&format!("readlink {dir}/whole/policies/tool/current")).starts_with("step-000002"));
    assert_eq!(
        must(&format!("ls {dir}/whole/policies")).split_whitespace().collect::<Vec<_>>(),
        ["done", "tool"]
    );
    for line in ["whole", "parts"]
        .map(|run| must(&format!("grep -v '\"end\"' {dir}/{run}/steps/000002/samples.jsonl")))
        .windows(2)
    {
        assert_eq!(line[0], line[1]);
    }
    must(&format!(
        "cmp {dir}/whole/policies/tool/current/model.safetensors {dir}/parts/policies/tool/current/model.safetensors"
    ));
    // The report's episodes have what the server said, and the curves do not count it.
    let page = must(&format!("cat {dir}/whole/report.html"));
    assert!(page.contains("d3 c3") && page.contains("\"policy\":\"large\""));
    let url = &policies[1];
    let (code, _, told) =
        run(&format!("{}/pipeline.sh --policies {url} --policies tool=http://x/v1", root().display()));
    assert_eq!((code, told.contains("servers play all agents")), (2, true), "{told}");
}

#[test]
fn faults_of_a_server_are_one_line_and_a_hint() {
    let (_folder, dir) = fixture();
    let refused = |behavior: Behavior, flags: &str, code: i32, expected: &str| {
        let server = StandInServer::start(&["large"], behavior);
        let (found, stdout, told) = run(&format!("{} {flags}", rollout(&dir, &server.url)));
        assert_eq!(found, code, "{told}\n{stdout}");
        assert!(told.contains(expected), "{expected:?} in {told}");
        stdout
    };
    refused(
        |_, _| Reply::Status(401, "", r#"{"error": {"message": "bad key"}}"#),
        "",
        69,
        ": 401: bad key\nhint: set OPENAI_API_KEY",
    );
    refused(
        |_, _| Reply::Status(404, "", "nothing here"),
        "",
        69,
        ": 404: nothing here\nhint: the URL ends where",
    );
    // One prompt that has no answer ends its episode; too many of them end the run.
    let failed = refused(
        |_, _| Reply::Status(400, "", r#"{"message": "too long"}"#),
        "",
        1,
        "episodes could not be scored",
    );
    let error = failed.lines().find(|line| line.contains(r#""type":"error""#)).expect("an error line");
    assert!(error.contains(r#""boundary":"policy""#) && error.contains("400: too long"), "{error}");
    let patience = "--server-timeout 0.3 --server-retries 1";
    let failed =
        refused(|_, _| Reply::Hang(Duration::from_secs(2)), patience, 1, "episodes could not be scored");
    assert!(failed.contains("no answer in 0.3 s"), "{failed}");
    let failed = refused(|_, _| Reply::Raw("<html>"), "", 1, "episodes could not be scored");
    assert!(failed.contains("its answer is no JSON: <html>"), "{failed}");
    let patience = "--server-retries 0";
    let failed = refused(|_, _| Reply::Raw("{}"), patience, 1, "episodes could not be scored");
    assert!(failed.contains("its answer has no message: {}"), "{failed}");
    let failed = refused(|_, _| Reply::Raw(FAILED), patience, 1, "episodes could not be scored");
    assert!(failed.contains("its answer ended with an error: overloaded"), "{failed}");
    refused(
        |_, _| Reply::Status(200, "Content-Encoding: gzip\r\n", "\u{1f}"),
        "",
        69,
        "its answer is compressed (gzip)",
    );
    refused(
        |_, _| Reply::Status(302, "Location: http://127.0.0.1:1/internal\r\n", ""),
        "",
        69,
        ": 302: it sends to http://127.0.0.1:1/internal\nhint: only servers that --policy names are asked",
    );
    // Some of them do not.
    let some = |_: usize, body: &Value| match body["seed"].as_u64().unwrap_or_default() % 4 {
        0 => Reply::Status(422, "", "no"),
        _ => Reply::Text("d3"),
    };
    refused(some, "--max-error-rate 1", 0, "");

    let server = StandInServer::start(&["a", "b"], moody);
    let busy = format!("http://127.0.0.1:{}", closed_port());
    let of = |planner: &str, flags: &str| run(&format!("{} {flags}", rollout(&dir, planner)));
    for (planner, flags, code, expected) in [
        (server.url.as_str(), "", 2, "it has 2 models\nhint: name one: '"),
        (
            format!("{}?modle=a", server.url).as_str(),
            "",
            2,
            "no setting \"modle\", or not to such a value\nhint: settings are model=NAME",
        ),
        (&server.url.replace("/v1", "9/v1"), "", 2, "the port is not a number from 1 to 65535"),
        ("http://host:/v1?model=a", "", 2, "--policy http://host:/v1: the port is not"),
        ("http://ho st/v1?model=a", "", 2, "a URL holds no blanks"),
        (
            &format!("{}?model=a", server.url),
            "--joint aligned",
            2,
            "--joint: a server's agent has one candidate",
        ),
        (server.url.as_str(), "--server-timeout 0", 2, "--server-timeout 0: must be above 0 seconds"),
        (busy.as_str(), "--server-retries 1", 69, "cannot be reached"),
        ("http://key@host/v1", "", 2, "hint: put the key into OPENAI_API_KEY"),
        ("http://host/v1?api_key_var=TROUPE_NO_KEY", "", 2, "TROUPE_NO_KEY is not set"),
        (&no_tls(), "", 69, "no connection by https: "),
    ] {
        let (found, _, told) = of(planner, flags);
        assert_eq!(found, code, "{told}");
        assert!(told.contains(expected), "{expected:?} in {told}");
    }
}

/// A server that speaks http where https is asked for.
fn no_tls() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let _ = connection
                .and_then(|mut connection| connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
        }
    });
    format!("https://127.0.0.1:{port}/v1?model=a")
}

/// Its certificate is self-signed, so a client says nothing after the greeting.
#[test]
fn a_server_that_nobody_vouches_for_is_refused() {
    if run("command -v openssl").0 != 0 {
        skip!("there is no openssl to make a certificate with");
    }
    let (_folder, dir) = fixture();
    let port = closed_port();
    must(&format!(
        "cd '{}' && openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=127.0.0.1 \
         -addext subjectAltName=IP:127.0.0.1 2>log",
        dir
    ));
    let mut server = Command::new("openssl")
        .args([
            "s_server",
            "-quiet",
            "-www",
            "-key",
            "key.pem",
            "-cert",
            "cert.pem",
            "-port",
            &port.to_string(),
        ])
        .current_dir(&dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let (code, _, told) = run(&rollout(&dir, &format!("https://127.0.0.1:{port}/v1?model=a")));
    server.kill().and_then(|()| server.wait()).expect("it ends");
    assert_eq!(code, 69, "{told}");
    assert!(told.contains("no connection by https: ") && told.contains("certificate"), "{told}");
    assert_eq!(told.matches("hint: its certificate").count(), 1, "{told}");
}

/// An answer that ended with an error, as gateways say it.
const FAILED: &str = r#"{"choices": [{"message": {"content": ""}, "finish_reason": "error", "error": {"message": "overloaded"}}]}"#;

/// Errors that come with status 200, or in place of a candidate, may pass like others.
#[test]
fn an_error_with_status_200_is_asked_again() {
    let (_folder, dir) = fixture();
    let server = StandInServer::start(&["large"], |count, body| {
        assert!(body["seed"].is_null(), "seed=none leaves it out");
        match count % 5 {
            0 => Reply::Status(
                200,
                "Retry-After: 0\r\n",
                r#"{"error": {"code": 429, "message": "slow down"}}"#,
            ),
            1 => Reply::Parts("d3"),
            2 => Reply::Status(503, "Retry-After: 0\r\n", "busy"),
            _ => Reply::Text("d3"),
        }
    });
    let played = must(&rollout(&dir, &format!("{}?seed=none", server.url)));
    let served: Vec<&str> = played.lines().filter(|line| line.contains(r#""type":"served""#)).collect();
    assert!(served.len() >= 6 && served.iter().all(|line| line.contains(r#""completion":"d3""#)), "{played}");
    assert!(server.asked("/v1/chat/completions").len() > served.len(), "nothing was repeated");
}

/// Like proxies that echo the request.
#[test]
fn a_key_that_a_server_quotes_is_told_nobody() {
    let (_folder, dir) = fixture();
    let play = |behavior: Behavior, code: i32| {
        let server = StandInServer::start(&["large"], behavior);
        let play =
            rollout(&dir, &server.url).replace("OPENAI_API_KEY=secret", "OPENAI_API_KEY=sk-SECRET/4711");
        let (found, stdout, told) = run(&play);
        assert_eq!(found, code, "{told}");
        assert!(
            server.asked("/v1/chat/completions").iter().all(|asked| asked.key == "Bearer sk-SECRET/4711")
        );
        assert!(!stdout.contains("SECRET") && !told.contains("SECRET"), "{told}\n{stdout}");
        stdout + &told
    };
    let all =
        play(|_, _| Reply::Status(401, "", r#"{"error": {"message": "no key Bearer sk-SECRET\/4711"}}"#), 69);
    assert!(all.contains("no key Bearer ***"), "{all}");
    let all = play(|_, _| Reply::Status(400, "", "no key sk-SECRET/4711"), 1);
    assert!(all.contains("400: no key ***"), "{all}");
    play(|_, _| Reply::Raw("no JSON but sk-SECRET/4711"), 1);
    play(|_, _| Reply::Status(302, "Location: http://x/?key=sk-SECRET/4711\r\n", ""), 69);
    let all = play(|_, _| Reply::Text("my key is sk-SECRET/4711"), 0);
    assert!(all.contains("my key is ***"), "{all}");
}

#[test]
fn a_long_wait_is_told() {
    let (_folder, dir) = fixture();
    let server = StandInServer::start(&["large"], |_, _| Reply::Status(429, "Retry-After: 99999\r\n", "{}"));
    let play = rollout(&dir, &server.url).replace("--quiet", "");
    let mut child = shell(&play.replace("OPENAI_API_KEY=secret rollout", "exec rollout"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("rollout");
    let told = BufReader::new(child.stderr.take().expect("stderr"));
    let line = told.lines().map_while(Result::ok).find(|line| line.contains("429"));
    let _ = child.kill();
    let _ = child.wait();
    let line = line.expect("a note");
    assert!(line.ends_with("429: {}; trying again in 60 s (it asks for 99999 s)"), "{line}");
}

#[test]
fn many_models_are_not_all_named() {
    let (_folder, dir) = fixture();
    let server =
        StandInServer::start(&["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9", "m10"], moody);
    let (code, _, told) = run(&rollout(&dir, &server.url));
    assert_eq!(code, 2, "{told}");
    assert!(told.contains("it has 11 models") && told.trim_end().ends_with("m8, m9, …"), "{told}");
}
