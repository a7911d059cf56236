//! Which card a rank computes on. With `--device cuda`, or a list of cards, the rank with number N on its machine takes card N; no two
//! have the same.

use device::DeviceKind;
use record::failure::{Failure, Result};

use super::{Communicator, gather};
use crate::hardware::Hardware;

/// Where launchers say which of a machine's processes this is: Open MPI, MPICH and Intel MPI, Slurm.
const LOCAL_RANKS: [&str; 4] =
    ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"];

/// Gives each rank its card. One process that `plans` takes the first.
///
/// # Errors
/// 2 where two ranks would share a card, or one process would have several; 69 without the driver or a card. The same on all ranks, or they are ended.
pub fn assign(ranks: &dyn Communicator, hardware: &mut Hardware, plans: bool) -> Result<()> {
    if ranks.count() == 1 {
        return match hardware.devices.len() > 1 && !plans {
            true => Err(several(hardware)),
            false => Ok(()),
        };
    }
    let DeviceKind::Cuda(mut number) = hardware.kind else { return Ok(()) };
    let cards = device::cuda::identities()?;
    let all: Vec<u32> = match hardware.device == "cuda" {
        true => (0..cards.len() as u32).collect(),
        false => hardware.devices.cards(),
    };
    if hardware.device == "cuda" || all.len() > 1 {
        let local = LOCAL_RANKS.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
        number = card(local.unwrap_or(0), &all);
        hardware.kind = DeviceKind::Cuda(number);
        hardware.device = hardware.kind.to_string();
    }
    // One that is not there is refused where it is opened.
    distinct(ranks, cards.get(number as usize).map_or(&[][..], |identity| identity))
}

fn several(hardware: &Hardware) -> Failure {
    let (device, count) = (&hardware.device, hardware.devices.len());
    Failure::usage(format!("--device {device}: one process trains on one device")).hint(format!(
        "--device {}, or a process for each: mpirun -n {count} update-mpi --device {device} --parts N",
        hardware.kind
    ))
}

/// The card of a machine's `local`-th rank. Where a launcher shows each rank its own card alone, that is the first.
fn card(local: u32, cards: &[u32]) -> u32 {
    cards.get(local as usize % cards.len().max(1)).copied().unwrap_or(0)
}

/// Fails where two ranks have one card.
fn distinct(ranks: &dyn Communicator, own: &[u8]) -> Result<()> {
    let all = gather(ranks, own);
    for (later, identity) in all.iter().enumerate().filter(|(_, identity)| !identity.is_empty()) {
        let Some(earlier) = all[..later].iter().position(|other| other == identity) else { continue };
        let [earlier, later] = [earlier, later].map(|rank| ranks.number(rank));
        return Err(Failure::usage(format!("--device: ranks {earlier} and {later} are on one card")).hint(
            "start as many ranks on a machine as it has cards, all with --device cuda; or give each its own by \
             CUDA_VISIBLE_DEVICES or --device cuda:N",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::tests::each;

    #[test]
    fn ranks_of_a_machine_take_its_cards_in_turn() {
        assert_eq!([0, 3, 7, 8].map(|local| card(local, &[0, 1, 2, 3, 4, 5, 6, 7])), [0, 3, 7, 0]);
        assert_eq!([0, 1, 2].map(|local| card(local, &[4, 2])), [4, 2, 4], "those that are named");
        assert_eq!([card(5, &[0]), card(0, &[])], [0, 0]);
    }

    #[test]
    fn two_ranks_on_one_card_are_refused_on_all() {
        let on = |cards: [&'static str; 4]| {
            each(4, move |ranks| {
                distinct(ranks, cards[ranks.rank()].as_bytes()).map_err(|failure| failure.message)
            })
        };
        assert!(on(["a", "b", "c", "d"]).iter().all(|outcome| outcome.is_ok()));
        assert!(
            on(["", "b", "", "d"]).iter().all(|outcome| outcome.is_ok()),
            "what is not there is refused elsewhere"
        );
        let refused = "--device: ranks 1 and 3 are on one card".to_owned();
        let found = on(["a", "b", "c", "b"]);
        assert!(found.iter().all(|outcome| outcome.as_ref() == Err(&refused)), "{found:?}");
    }
}
