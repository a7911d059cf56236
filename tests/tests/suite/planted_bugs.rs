//! Synchronization bugs planted in the real kernels, one at a time: the simulator must catch every one.
//!
//! On a GPU a kernel without a barrier is right most of the time. Here the kernel's source is changed,
//! compiled for the simulator at test time, and run with seeds 0 to 3. A bug is caught if a launch fails, or
//! if the result differs from the unchanged kernel's, which must be bit-identical for every seed.

use std::path::{Path, PathBuf};
use std::process::Command;

use device::{Argument, Device, Kernel, Parameter, Scalar, Shape, Sim, Source};
use half::bf16;
use libloading::Library;
use record::failure::Result;

/// A planted bug.
struct Planted {
    name: &'static str,
    /// The file whose text changes.
    file: &'static str,
    from: &'static str,
    to: &'static str,
    case: Case,
}

/// The kernel to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Case {
    AttentionForward,
    AttentionKeys,
    WarpgroupForward,
    WarpgroupKeys,
    Norm,
    NormBackward,
}

const CASES: [Case; 6] = [
    Case::AttentionForward,
    Case::AttentionKeys,
    Case::WarpgroupForward,
    Case::WarpgroupKeys,
    Case::Norm,
    Case::NormBackward,
];

const BUGS: [Planted; 19] = [
    Planted {
        name: "a wait for all but two groups of copies instead of all but one",
        file: "attention_forward.cuh",
        from: "copy_async_wait<1>();",
        to: "copy_async_wait<2>();",
        case: Case::AttentionForward,
    },
    Planted {
        name: "no barrier between the copies' arrival and their use by other warps",
        file: "attention_forward.cuh",
        from: "copy_async_wait<1>();\n        __syncthreads();",
        to: "copy_async_wait<1>();",
        case: Case::AttentionForward,
    },
    Planted {
        name: "no barrier before a tile in use is overwritten",
        file: "attention_forward.cuh",
        from: "__syncthreads();\n        b = following;",
        to: "b = following;",
        case: Case::AttentionForward,
    },
    Planted {
        name: "a group of copies that is not committed",
        file: "attention_forward.cuh",
        from: "if (following < blocks) fetch(following, stage ^ 1);\n        copy_async_commit();",
        to: "if (following < blocks) fetch(following, stage ^ 1);",
        case: Case::AttentionForward,
    },
    Planted {
        name: "no barrier between writing probabilities and reading those of other warps",
        file: "attention_backward.cuh",
        from: "__syncthreads();\n#pragma unroll\n            for (int c = 0; c < QUERIES",
        to: "for (int c = 0; c < QUERIES",
        case: Case::AttentionKeys,
    },
    Planted {
        name: "no barrier before the next head's tiles",
        file: "attention_backward.cuh",
        from: "            __syncthreads();\n        }\n    }",
        to: "        }\n    }",
        case: Case::AttentionKeys,
    },
    Planted {
        name: "no fence between copies and the products that read them",
        file: "attention_128_sm90a.cuh",
        from: "    fence_proxy_async();\n",
        to: "",
        case: Case::WarpgroupForward,
    },
    Planted {
        name: "no barrier between the copies' arrival and their use by other warps' products",
        file: "attention_128_sm90a.cuh",
        from: "fence_proxy_async();\n    __syncthreads();",
        to: "fence_proxy_async();",
        case: Case::WarpgroupKeys,
    },
    Planted {
        name: "copies to a tile that other warps' products still read",
        file: "attention_forward_128_sm90a.cuh",
        from: "wait_for_tiles();\n        if (at < end) fetch(at / 2, stage ^ 1);",
        to: "if (at < end) fetch(at / 2, stage ^ 1);\n        wait_for_tiles();",
        case: Case::WarpgroupForward,
    },
    Planted {
        name: "sums of products read before the wait for them",
        file: "attention_forward_128_sm90a.cuh",
        from: "wgmma_commit();\n        wgmma_wait<0>(s);",
        to: "wgmma_commit();\n        wgmma_wait<1>(s);",
        case: Case::WarpgroupForward,
    },
    Planted {
        name: "a wait for the products before the last in place of the last",
        file: "attention_backward_128_sm90a.cu",
        from: "wgmma_wait<1>(d);",
        to: "wgmma_wait<2>(d);",
        case: Case::WarpgroupKeys,
    },
    Planted {
        name: "a group of products that is not committed",
        file: "attention_backward_128_sm90a.cu",
        from: "gemm_rs(sum_k, slopes, qt);\n        wgmma_commit();",
        to: "gemm_rs(sum_k, slopes, qt);",
        case: Case::WarpgroupKeys,
    },
    Planted {
        name: "products of registers that no fence orders",
        file: "attention_backward_128_sm90a.cu",
        from: "u32 pieces[QUERIES / 16][4];\n        wgmma_fence();",
        to: "u32 pieces[QUERIES / 16][4];",
        case: Case::WarpgroupKeys,
    },
    Planted {
        name: "a sum over the block read before all warps have added to it",
        file: "device.cuh",
        from: "if (lane == 0) scratch[warp] = value;\n  __syncthreads();\n  if (warp == 0) {\n    value = warp_sum",
        to: "if (lane == 0) scratch[warp] = value;\n  if (warp == 0) {\n    value = warp_sum",
        case: Case::Norm,
    },
    Planted {
        name: "a sum over the block read before it is there",
        file: "device.cuh",
        from: "if (lane == 0) scratch[32] = value;\n  }\n  __syncthreads();",
        to: "if (lane == 0) scratch[32] = value;\n  }",
        case: Case::Norm,
    },
    Planted {
        name: "a barrier that a part of the block never reaches",
        file: "rms_norm.cu",
        from: "float scale = rsqrtf(block_sum(squares, scratch) / width + epsilon);",
        to: "float scale = 1.f;\n    if (threadIdx.x < 40) scale = rsqrtf(block_sum(squares, scratch) / width + epsilon);",
        case: Case::Norm,
    },
    Planted {
        name: "a thread that returns before a barrier",
        file: "rms_norm.cu",
        from: "float squares = 0.f;\n    for",
        to: "float squares = 0.f;\n    if (threadIdx.x * 4 >= width) return;\n    for",
        case: Case::Norm,
    },
    Planted {
        name: "two sums over the block read before all warps have added to them",
        file: "common.cuh",
        from: "scratch[threadIdx.x >> 5] = value;\n    __syncthreads();",
        to: "scratch[threadIdx.x >> 5] = value;",
        case: Case::NormBackward,
    },
    Planted {
        name: "a row's sums where a warp may still read those of the row before",
        file: "rms_norm.cu",
        from: "scratch + 32 * turn",
        to: "scratch",
        case: Case::NormBackward,
    },
];

#[test]
fn every_planted_bug_is_caught() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sound = Vec::new();
    for case in CASES {
        let kernel = build(folder.path(), &format!("{case:?}"), case, None);
        let results: Vec<Vec<u32>> = (0..4)
            .map(|seed| run(kernel, case, seed).unwrap_or_else(|message| panic!("{case:?}: {message}")))
            .collect();
        assert!(results.iter().all(|result| *result == results[0]), "{case:?} depends on the schedule");
        assert!(results[0].iter().all(|bits| f32::from_bits(*bits).is_finite()), "{case:?} gives no numbers");
        sound.push((case, results[0].clone()));
    }
    let mut escaped = Vec::new();
    for (index, bug) in BUGS.iter().enumerate() {
        let kernel = build(folder.path(), &format!("bug{index}"), bug.case, Some(bug));
        let wanted = &sound.iter().find(|(case, _)| *case == bug.case).expect("the unchanged kernel").1;
        let caught = (0..4).find_map(|seed| match run(kernel, bug.case, seed) {
            Err(message) => Some(format!("seed {seed}: {message}")),
            Ok(result) => {
                let wrong = result.iter().zip(wanted).filter(|(a, b)| a != b).count();
                (wrong > 0).then(|| format!("seed {seed}: {wrong} of {} values differ", wanted.len()))
            }
        });
        match caught {
            Some(how) => println!("{}: {how}", bug.name),
            None => escaped.push(bug.name),
        }
    }
    assert!(escaped.is_empty(), "not caught: {escaped:#?}");
}

fn compiler() -> Command {
    let mut command = Command::new(std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned()));
    command.args(["-std=c++17", "-O1", "-fPIC", "-w"]).args(compile_kernels::FLAGS);
    command.arg("-I").arg(compile_kernels::include_directory());
    command
}

/// The simulator's object files, compiled once into `folder`.
fn simulator(folder: &Path) -> Vec<PathBuf> {
    let object = |source: &str| {
        let object = folder.join(source).with_extension("o");
        if !object.exists() {
            let source = compile_kernels::include_directory().join(source);
            let compiled = compiler().arg("-c").arg(&source).arg("-o").arg(&object).status();
            assert!(compiled.expect("a C++ compiler").success(), "{} does not compile", source.display());
        }
        object
    };
    compile_kernels::SIMULATOR.iter().map(|source| object(source)).collect()
}

/// The case's kernel with the bug, compiled for the simulator. It stays loaded until the test ends.
fn build(folder: &Path, name: &str, case: Case, bug: Option<&Planted>) -> &'static Kernel {
    let (file, wanted) = match case {
        Case::AttentionForward => ("attention_16.cu", "attention_16"),
        Case::AttentionKeys => ("attention_16.cu", "attention_keys_16"),
        Case::WarpgroupForward => ("attention_128_sm90a.cu", "attention_128_sm90a"),
        Case::WarpgroupKeys => ("attention_backward_128_sm90a.cu", "attention_keys_128_sm90a"),
        Case::Norm => ("rms_norm.cu", "rms_norm"),
        Case::NormBackward => ("rms_norm.cu", "rms_norm_backward"),
    };
    let path = troupe_tests::root().join("update/kernels").join(file);
    let expanded = compile_kernels::expand_with(&path, &|path, text| match bug {
        Some(bug) if path.ends_with(bug.file) => {
            assert!(text.contains(bug.from), "{}: {} no longer reads {:?}", bug.name, bug.file, bug.from);
            text.replacen(bug.from, bug.to, 1)
        }
        _ => text,
    })
    .expect("the source is read");
    let mut signatures =
        compile_kernels::signatures(&expanded.text).expect("the source keeps the conventions");
    signatures.retain(|signature| signature.name == wanted);
    let signature = signatures.first().expect("the kernel");
    let source = folder.join(format!("{name}.cpp"));
    let library = folder.join(format!("{name}.so"));
    std::fs::write(&source, compile_kernels::host_wrapper("planted", &expanded.text, &signatures))
        .expect("written");
    let objects = simulator(folder);
    let compiled = compiler().arg("-shared").arg(&source).args(objects).arg("-o").arg(&library).status();
    assert!(compiled.expect("a C++ compiler").success(), "{name} does not compile");
    // SAFETY: the library was just made from the simulator's source.
    let library = Box::leak(Box::new(unsafe { Library::new(&library) }.expect("it loads")));
    let scalar = |scalar: &str| match scalar {
        "Bf16" => Scalar::Bf16,
        "F32" => Scalar::F32,
        "I32" => Scalar::I32,
        other => panic!("a parameter of type {other}"),
    };
    let parameters: Vec<Parameter> = signature
        .parameters
        .iter()
        .map(|p| Parameter { name: p.name.clone().leak(), scalar: scalar(p.scalar), pointer: p.pointer })
        .collect();
    let architecture = compile_kernels::architecture(file.trim_end_matches(".cu"));
    let text: &'static Source =
        Box::leak(Box::new(Source { name: "planted", text: expanded.text.leak(), architecture }));
    // SAFETY: the entry was generated for this kernel's parameters.
    Box::leak(Box::new(unsafe {
        let symbol = format!("simulated_planted_{wanted}");
        let entry = *library.get(symbol.as_bytes()).expect("its entry");
        Kernel::new(signature.name.clone().leak(), text, parameters.leak(), entry)
    }))
}

/// The bits of the results, or the error of the simulator.
fn run(kernel: &'static Kernel, case: Case, seed: u64) -> std::result::Result<Vec<u32>, String> {
    let mut sim = Sim::new(2, seed).expect("a simulator");
    sim.reserve(16 << 20).expect("memory");
    match case {
        Case::Norm => norm(&mut sim, kernel),
        Case::NormBackward => norm_backward(&mut sim, kernel),
        _ => attention(&mut sim, kernel, case),
    }
    .map_err(|failure| failure.message)
}

/// Numbers without a pattern, in [-1, 1).
fn values(count: usize, salt: u32) -> Vec<f32> {
    (0..count as u32)
        .map(|i| {
            (i.wrapping_mul(2_654_435_761).wrapping_add(salt.wrapping_mul(40_503)) >> 8) as f32 / 8_388_608.0
                - 1.0
        })
        .collect()
}

fn halves(sim: &mut Sim, count: usize, salt: u32) -> Result<device::Buffer<bf16>> {
    let buffer = sim.allocate::<bf16>(count)?;
    let values: Vec<bf16> = values(count, salt).into_iter().map(bf16::from_f32).collect();
    sim.upload(&values, buffer.all())?;
    Ok(buffer)
}

fn upload<T: device::Element>(sim: &mut Sim, values: &[T]) -> Result<device::Buffer<T>> {
    let buffer = sim.allocate::<T>(values.len())?;
    sim.upload(values, buffer.all())?;
    Ok(buffer)
}

fn bits(sim: &mut Sim, buffer: &device::Buffer<bf16>) -> Result<Vec<u32>> {
    let mut values = vec![bf16::ZERO; buffer.len()];
    sim.download(buffer.all(), &mut values)?;
    Ok(values.iter().map(|value| value.to_f32().to_bits()).collect())
}

/// Rows of 152 values by blocks of 96 threads: 58 of them have nothing to add.
fn norm(sim: &mut Sim, kernel: &'static Kernel) -> Result<Vec<u32>> {
    let (rows, width) = (6, 152);
    let (x, weight) = (upload(sim, &values(rows * width, 1))?, halves(sim, width, 2)?);
    let out = halves(sim, rows * width, 3)?;
    let arguments: [Argument<'_>; 5] =
        [(&out).into(), (&x).into(), (&weight).into(), (width as i32).into(), 1e-6f32.into()];
    sim.launch(kernel, Shape::rows(rows as u32, 96), &arguments)?;
    bits(sim, &out)
}

/// Six rows of 392 values by two blocks of 64 threads, of which 30 have four values and the others eight.
fn norm_backward(sim: &mut Sim, kernel: &'static Kernel) -> Result<Vec<u32>> {
    let (rows, width, blocks) = (6, 392, 2);
    let (x, weight) = (upload(sim, &values(rows * width, 1))?, halves(sim, width, 2)?);
    let (d_out, d_x) = (upload(sim, &values(rows * width, 3))?, upload(sim, &values(rows * width, 4))?);
    let partials = sim.allocate::<f32>(blocks * width)?;
    let buffers: [Argument<'_>; 5] =
        [(&d_x).into(), (&partials).into(), (&d_out).into(), (&x).into(), (&weight).into()];
    let numbers = [(rows as i32).into(), (width as i32).into(), 1e-6f32.into()];
    sim.launch(kernel, Shape::rows(blocks as u32, 64), &[&buffers[..], &numbers].concat())?;
    let mut found = Vec::new();
    for buffer in [&d_x, &partials] {
        let mut values = vec![0f32; buffer.len()];
        sim.download(buffer.all(), &mut values)?;
        found.extend(values.into_iter().map(f32::to_bits));
    }
    Ok(found)
}

/// A prompt of 150 tokens and two branches of 100 and 90 under it, two query heads on one key head.
fn attention(sim: &mut Sim, kernel: &'static Kernel, case: Case) -> Result<Vec<u32>> {
    // Values of a head, rows or keys of a block, its threads, its shared memory.
    let (width, owned, threads, shared) = match case {
        Case::AttentionForward => (16, 64, 128, 15_360),
        Case::AttentionKeys => (16, 64, 256, 31_488),
        Case::WarpgroupForward => (128usize, 128, 256, 164_864),
        _ => (128, 128, 256, 132_608),
    };
    let heads = 2usize;
    let (prompt, first, tokens) = (150usize, 250usize, 340usize);
    let ends: Vec<i32> = (0..tokens)
        .map(|key| if (prompt..first).contains(&key) { first as i32 } else { tokens as i32 })
        .collect();
    let tiles: Vec<&[i32]> = ends.chunks(64).collect();
    let last: Vec<i32> = tiles.iter().map(|tile| tile.iter().copied().max().unwrap_or(0)).collect();
    let least = |tile: &&[i32]| if tile.len() < 64 { 0 } else { tile.iter().copied().min().unwrap_or(0) };
    // For each tile of keys the largest end, the smallest, and the next tile with a larger maximum.
    let later = |at: usize| (at + 1..last.len()).find(|&next| last[next] > last[at]).unwrap_or(last.len());
    let next = (0..last.len()).map(|at| later(at) as i32);
    let tables: Vec<i32> = last.iter().copied().chain(tiles.iter().map(least)).chain(next).collect();
    let seen_by = |row: usize| last.iter().position(|&end| end > row as i32).unwrap_or(0) as i32;
    let first_tiles: Vec<i32> = (0..tokens).step_by(64).map(seen_by).collect();
    let nodes: Vec<i32> = (0..tokens as i32).collect();
    let (nodes, ends) = (upload(sim, &nodes)?, upload(sim, &ends)?);
    let (first_tiles, tables) = (upload(sim, &first_tiles)?, upload(sim, &tables)?);
    let (queries, keys, both) = (
        halves(sim, tokens * heads * width, 1)?,
        halves(sim, tokens * width, 2)?,
        halves(sim, tokens * heads * width, 4)?,
    );
    let values_ = halves(sim, tokens * width, 3)?;
    let statistics: Vec<f32> = values(tokens * heads, 5).iter().map(|value| value + 4.0).collect();
    let (lse, deltas) = (upload(sim, &statistics)?, upload(sim, &statistics)?);
    let shape = |columns: u32| Shape {
        grid: [tokens.div_ceil(owned) as u32, columns, 1],
        block: [threads, 1, 1],
        shared,
    };
    let numbers = [tokens, tokens, heads, 1, width, width].map(|number| Argument::from(number as i32));
    let scale: Argument<'_> = 0.25f32.into();
    let tree: [Argument<'_>; 3] = [(&nodes).into(), (&ends).into(), (&tables).into()];
    let inputs: [Argument<'_>; 3] = [(&queries).into(), (&keys).into(), (&values_).into()];
    if matches!(case, Case::AttentionForward | Case::WarpgroupForward) {
        let out = halves(sim, tokens * heads * width, 6)?;
        let outputs: [Argument<'_>; 2] = [(&out).into(), (&lse).into()];
        let (nodes, first_tiles) = (tree[0], Argument::from(&first_tiles));
        let arguments =
            [&outputs[..], &inputs, &[nodes, first_tiles], &tree[1..], &numbers, &[scale]].concat();
        sim.launch(kernel, shape(heads as u32), &arguments)?;
        return bits(sim, &out);
    }
    let (d_keys, d_values) = (upload(sim, &values(tokens * width, 6))?, halves(sim, tokens * width, 7)?);
    let outputs: [Argument<'_>; 3] = [(&d_keys).into(), (&d_values).into(), (&both).into()];
    let statistics: [Argument<'_>; 2] = [(&lse).into(), (&deltas).into()];
    let arguments = [&outputs[..], &inputs, &statistics, &tree, &numbers, &[scale]].concat();
    sim.launch(kernel, shape(1), &arguments)?;
    let mut found = vec![0f32; d_keys.len()];
    sim.download(d_keys.all(), &mut found)?;
    Ok(found.into_iter().map(f32::to_bits).chain(bits(sim, &d_values)?).collect())
}
