//! The batch file of docs/cluster.md, and policies that train side by side, under a Slurm of one node,
//! started for each test: the run leaves the same bytes as without Slurm.
//!
//! Needs Slurm's daemons, munge and MPI; without one of them the test says NOT RUN.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use troupe_tests::{contents, differences, must, pipeline, programs, root, run, shell, update_mpi};

/// Ports that a Slurm of this process has taken.
static PORTS: AtomicU32 = AtomicU32::new(0);

/// A Slurm of this machine with two processors, whose daemons end with it.
struct Slurm {
    folder: TempDir,
    /// One at a time: the first job of each has the same number, and PMIx names its files in /tmp by that
    /// number.
    _alone: MutexGuard<'static, ()>,
}

/// A Slurm, if MPI is installed; otherwise reports that the test is not run.
fn slurm() -> Option<Slurm> {
    update_mpi()?;
    Slurm::start().map_err(|why| troupe_tests::skip::not_run(&format!("no Slurm of one node: {why}"))).ok()
}

impl Slurm {
    /// Starts one, or says why not.
    fn start() -> Result<Slurm, String> {
        let folder = tempfile::Builder::new().prefix("slurm").tempdir_in("/tmp").expect("a short path");
        static ALONE: Mutex<()> = Mutex::new(());
        let slurm = Slurm { folder, _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner) };
        let place = slurm.folder.path().display();
        let asked = |command: &str| run(command).0 == 0;
        for program in ["munged", "slurmctld", "slurmd", "sbatch", "srun"] {
            if !asked(&format!("PATH=$PATH:/usr/sbin command -v {program}")) {
                return Err(format!(
                    "there is no {program}: apt-get install slurmctld slurmd slurm-client munge"
                ));
            }
        }
        let host = must("hostname").trim().to_owned();
        let user = must("id -un").trim().to_owned();
        let port = 20_000 + (std::process::id() + PORTS.fetch_add(2, Relaxed)) % 20_000;
        let conf = format!(
            "ClusterName=one\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser={user}\nSlurmdUser={user}\nAuthType=auth/munge\n\
             AuthInfo=socket={place}/munge.socket\nCredType=cred/munge\nSlurmctldPort={port}\nSlurmdPort={}\n\
             StateSaveLocation={place}/state\nSlurmdSpoolDir={place}/spool\nSlurmctldPidFile={place}/slurmctld.pid\n\
             SlurmdPidFile={place}/slurmd.pid\nSlurmctldLogFile={place}/slurmctld.log\nSlurmdLogFile={place}/slurmd.log\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\nReturnToService=2\n\
             NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN\nPartitionName=all Nodes=ALL Default=YES State=UP\n",
            port + 1
        );
        fs::write(slurm.folder.path().join("slurm.conf"), conf).map_err(|error| error.to_string())?;
        let (code, _, stderr) = slurm.run(&format!(
            "cd '{place}' && mkdir state spool && dd if=/dev/urandom of=munge.key bs=1024 count=1 status=none && \
             chmod 600 munge.key && munged --force --key-file={place}/munge.key --socket={place}/munge.socket \
             --pid-file={place}/munge.pid --log-file={place}/munge.log --seed-file={place}/munge.seed && \
             slurmctld -f {place}/slurm.conf && slurmd -f {place}/slurm.conf && \
             for try in $(seq 100); do ! sinfo -h -o %t | grep -q idle || exit 0; sleep 0.2; done; exit 1"
        ));
        if code != 0 {
            return Err(format!("the daemons do not start: {stderr}"));
        }
        let (_, known, more) = slurm.run("srun --mpi=list");
        if (known + &more).contains("pmix") { Ok(slurm) } else { Err("it knows no PMIx".to_owned()) }
    }

    fn run(&self, command: &str) -> (i32, String, String) {
        let conf = self.folder.path().join("slurm.conf");
        let output = shell(&format!("PATH=$PATH:/usr/sbin; {command}")).env("SLURM_CONF", conf).output();
        let output = output.expect("bash runs");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
    }

    /// Runs this batch file to its end and returns its output.
    fn completed(&self, batch: &str) -> String {
        let [job, log] = ["job", "log"].map(|name| self.folder.path().join(name));
        fs::write(&job, batch).expect("the batch file");
        let submit = format!("sbatch --parsable --output='{}' '{}'", log.display(), job.display());
        let (code, said, stderr) = self.run(&submit);
        assert_eq!(code, 0, "{stderr}");
        let (job, begun) = (said.trim().to_owned(), Instant::now());
        let state = loop {
            std::thread::sleep(Duration::from_millis(500));
            let (_, shown, _) = self.run(&format!("scontrol show job {job} -o"));
            let state =
                shown.split_whitespace().find_map(|word| word.strip_prefix("JobState=")).map(str::to_owned);
            match state.as_deref() {
                Some("PENDING" | "RUNNING" | "COMPLETING" | "CONFIGURING")
                    if begun.elapsed().as_secs() < 600 => {}
                _ => break state,
            }
        };
        let log = fs::read_to_string(&log).unwrap_or_default();
        assert_eq!(state.as_deref(), Some("COMPLETED"), "{log}");
        log
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        let place = self.folder.path().display();
        run(&format!(
            "for name in slurmd slurmctld munge; do kill $(cat '{place}'/$name.pid); done; sleep 1"
        ));
    }
}

#[test]
#[ignore = "storm"]
fn the_batch_file_of_the_page_leaves_the_bytes_of_one_process() {
    let Some(slurm) = slurm() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let [alone, cluster] = ["alone", "cluster"].map(|name| folder.path().join(name));
    let small = "--warmup 12 --steps 2 --tasks 7 --branches 4 --eval-every 0 --parts 8";
    let whole = pipeline(&alone, &small.split(' ').collect::<Vec<_>>()).output().expect("pipeline.sh runs");
    assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));

    let page = fs::read_to_string(root().join("docs/cluster.md")).expect("the page");
    let batch =
        page.split("```text\n").find(|block| block.starts_with("#!/bin/bash\n")).expect("the batch file");
    let batch = batch.split("```").next().expect("its end");
    let of_this_node = [
        ("--nodes=2", "--nodes=1"),
        ("--cpus-per-task=16", "--cpus-per-task=1"),
        ("--shards 4 --ranks 4 --parts 8", &format!("--shards 2 --ranks 2 {small}")),
        ("runs/team", &cluster.display().to_string()),
    ];
    let batch = of_this_node.iter().fold(batch.to_owned(), |batch, (from, to)| {
        assert!(batch.contains(from), "{from} in {batch}");
        batch.replace(from, to)
    });
    let log = slurm.completed(&batch);
    assert!(log.contains("step 2: success in training"), "{log}");

    // The streams say which shard they are of; policies, versions and tasks are the same.
    let trained = |run: &Path| {
        let mut made = contents(run);
        made.retain(|name, _| name.starts_with("policies") || name.ends_with("/done"));
        made
    };
    assert!(trained(&alone).len() > 8, "{:?}", trained(&alone).keys());
    assert!(trained(&alone) == trained(&cluster), "{log}");
    let metrics = fs::read_to_string(cluster.join("steps/000002/metrics.jsonl")).expect("the metrics");
    assert!(metrics.contains("\"ranks\":2"), "{metrics}");
    assert!(programs().join("update-mpi").exists());
}

#[test]
#[ignore = "storm"]
fn two_policies_train_side_by_side_with_the_bytes_of_one_process() {
    let Some(slurm) = slurm() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let [alone, cluster] = ["alone", "cluster"].map(|name| folder.path().join(name));
    let small = "--policies per-role --warmup 12 --steps 2 --tasks 4 --branches 4 --eval-every 0";
    let whole = pipeline(&alone, &small.split(' ').collect::<Vec<_>>()).output().expect("pipeline.sh runs");
    assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));
    let log = slurm.completed(&format!(
        "#!/bin/bash\n#SBATCH --ntasks=2\n./pipeline.sh --run '{}' {small} --ranks 2 --side-by-side --launcher srun\n",
        cluster.display()
    ));
    assert!(log.contains("step 2: success in training"), "{log}");
    let differences = differences(&alone, &cluster);
    assert!(differences.is_empty(), "{differences:?}");
}

#[test]
fn the_page_has_the_table_of_the_model() {
    let page = fs::read_to_string(root().join("docs/cluster.md")).expect("the page");
    let table = must(&format!("python3 '{}'", root().join("bench/speed/cluster_model.py").display()));
    assert!(table.lines().count() > 6 && page.contains(&table), "{table}");
}
