//! Opening a Mooncake: what reaches its set-up, what goes wrong and how it is told, and that the host stays as it was.

mod standin;

use std::sync::Arc;
use std::time::{Duration, Instant};

use moonring::store::{self, MooncakeError, OpenError, OpenOptions, Store};
use moonring::{Engine, L2Adapter, Region, RegionOptions, SlotClass, StartError, block_on};
use standin::{Kind, Master, StandIn, config};

#[test]
fn the_official_function_gets_its_arguments_and_their_defaults() {
    let Some(library) = StandIn::compile(Kind::Faulty) else {
        return;
    };
    let master = Master::listen();
    let addr = master.addr();
    drop(library.open(&master.config("")).expect("it opens"));
    assert_eq!(
        library.heard(),
        format!("127.0.0.1|P2PHANDSHAKE|16777216|16777216|tcp||{addr}|")
    );
    let more = r#""global_segment_size": "3 GB", "local_buffer_size": 0, "protocol": "tcp", "rdma_devices": "mlx5_0,mlx5_1""#;
    drop(library.open(&master.config(more)).expect("it opens"));
    assert_eq!(
        library.heard(),
        format!("127.0.0.1|P2PHANDSHAKE|3221225472|0|tcp|mlx5_0,mlx5_1|{addr}|")
    );
}

#[test]
fn what_the_official_function_can_not_carry_is_refused_by_name() {
    let Some(library) = StandIn::compile(Kind::Faulty) else {
        return;
    };
    let master = Master::listen();
    let refused = |more: &str| match library.open(&master.config(more)) {
        Err(MooncakeError::Config(error)) => (error.field().to_owned(), error.to_string()),
        other => panic!("{more}: {other:?}"),
    };
    let (field, text) = refused(r#""tenant_id": "a""#);
    assert_eq!(field, "tenant_id");
    assert!(
        text.contains("local_hostname, metadata_server, global_segment_size"),
        "{text}"
    );
    let (field, text) = refused(r#""global_segment_size": "1.5 GB""#);
    assert_eq!(field, "global_segment_size");
    assert!(text.contains("fractional"), "{text}");
    assert_eq!(
        refused(r#""local_buffer_size": true"#).0,
        "local_buffer_size"
    );
    let open = |members: &str| library.open(&config(members)).unwrap_err().to_string();
    assert!(open(r#""local_hostname": "h""#).starts_with("metadata_server: missing"));
    assert!(open(r#""metadata_server": "P2PHANDSHAKE""#).starts_with("local_hostname: missing"));
    assert_eq!(
        library.count("creates"),
        0,
        "no client was made for any of them"
    );
}

#[test]
fn with_the_extension_every_key_reaches_the_set_up_as_it_is() {
    let Some(library) = StandIn::compile(Kind::Store) else {
        return;
    };
    let more = r#""tenant_id": "a b", "enable_ssd_offload": true, "n": 1e3, "global_segment_size": "1.5GB", "gone": null"#;
    let store = library
        .open(&Master::listen().config(more))
        .expect("it opens");
    for (key, value) in [
        ("local_hostname", Some("127.0.0.1")),
        ("tenant_id", Some("a b")),
        ("enable_ssd_offload", Some("true")),
        ("n", Some("1000")),
        ("global_segment_size", Some("1.5GB")),
        ("gone", None),
        ("protocol", None),
    ] {
        assert_eq!(library.configured(key).as_deref(), value, "{key}");
    }
    assert_eq!(store.version().as_deref(), Some("stand-in"));
    let found = store.library();
    assert!(found.takes_dictionary && found.path == library.path.display().to_string());
}

#[test]
fn a_failed_set_up_tells_its_code_and_name() {
    let Some(library) = StandIn::compile(Kind::Faulty) else {
        return;
    };
    library.set("setup_returns", -600);
    let error = library.open(&Master::listen().config("")).unwrap_err();
    assert_eq!(
        error,
        MooncakeError::Setup {
            code: -600,
            detail: None
        }
    );
    assert_eq!(
        error.to_string(),
        "Mooncake's set-up failed with -600 (INVALID_PARAMS)"
    );
    assert_eq!(
        (library.count("creates"), library.count("destroys")),
        (1, 1)
    );
    library.set("create_fails", 1);
    let error = library.open(&Master::listen().config("")).unwrap_err();
    assert_eq!(error, MooncakeError::Create { detail: None });
    assert_eq!(library.count("destroys"), 1, "there was no client");
}

#[test]
fn an_exception_during_opening_is_told() {
    let Some(library) = StandIn::compile(Kind::Store) else {
        return;
    };
    library.tell("throw");
    let error = library.open(&Master::listen().config("")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Mooncake made no client: as the test told"
    );
    library.tell("");
    let error = library
        .open(&config(r#""master_server_addr": "etcd://nowhere:1""#))
        .unwrap_err();
    assert_eq!(
        error,
        MooncakeError::Setup {
            code: -600,
            detail: None
        }
    );
    assert_eq!(library.clients(), 0);
}

#[test]
fn a_master_that_does_not_listen_is_told_in_seconds() {
    let Some(library) = StandIn::compile(Kind::Faulty) else {
        return;
    };
    let (addr, nobody) = {
        let master = Master::listen();
        (master.addr(), master.config(""))
    };
    let start = Instant::now();
    let error = library.open(&nobody).unwrap_err();
    let took = start.elapsed();
    assert!(
        took < Duration::from_secs(20),
        "it took {took:?}: {error:?}"
    );
    assert!(
        matches!(&error, MooncakeError::NoMaster { addr: a, .. } if *a == addr),
        "{error:?}"
    );
    assert!(error.to_string().contains(&addr), "{error}");
    assert_eq!(library.count("creates"), 0);
}

#[test]
fn a_set_up_that_hangs_is_abandoned_and_its_client_never_destroyed_under_it() {
    let Some(library) = StandIn::compile(Kind::Faulty) else {
        return;
    };
    library.set("setup_hangs", 1);
    let options = library.options().setup_timeout(Duration::from_secs(1));
    let start = Instant::now();
    let error = store::MooncakeStore::open(&Master::listen().config(""), &options).unwrap_err();
    let took = start.elapsed();
    assert!(
        took >= Duration::from_secs(1) && took < Duration::from_secs(20),
        "it was abandoned after {took:?}"
    );
    assert_eq!(
        error,
        MooncakeError::TimedOut {
            limit_s: 1,
            doing: "in Mooncake's set-up"
        }
    );
    assert!(error.to_string().contains("moonring.setup_timeout"));
    assert_eq!(
        (library.count("in_setup"), library.count("destroys")),
        (1, 0)
    );
    // When it comes back after all, its thread closes the client.
    library.set("setup_hangs", 0);
    let start = Instant::now();
    while library.count("destroys") == 0 {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "the late client stays"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(library.count("in_setup"), 0);
}

/// The calling thread's signal mask and allowed cores, and the process's handlers.
fn host() -> (Vec<bool>, Vec<bool>, Vec<usize>) {
    // SAFETY: plain questions with places for the answers.
    unsafe {
        let mut mask = std::mem::zeroed::<libc::sigset_t>();
        libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &mut mask);
        let blocked = (1..32).map(|n| libc::sigismember(&mask, n) == 1).collect();
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        libc::sched_getaffinity(0, size_of_val(&set), &mut set);
        let cores = (0..1024).map(|c| libc::CPU_ISSET(c, &set)).collect();
        let handlers = (1..32).map(|n| {
            let mut action = std::mem::zeroed::<libc::sigaction>();
            libc::sigaction(n, std::ptr::null(), &mut action);
            action.sa_sigaction
        });
        (blocked, cores, handlers.collect())
    }
}

#[test]
fn the_hosts_signals_and_affinity_stay_as_they_were() {
    let Some(library) = StandIn::compile(Kind::Faulty) else {
        return;
    };
    let before = host();
    library.set("create_meddles", 1);
    let store = library
        .open(&Master::listen().config(""))
        .expect("it opens");
    assert_eq!(library.count("creates"), 1);
    assert_eq!(host(), before);
    drop(store);
    assert_eq!(host(), before);
}

#[test]
fn rdma_demands_a_region_and_there_is_no_falling_back() {
    let Some(library) = StandIn::compile(Kind::Faulty) else {
        return;
    };
    let master = Master::listen();
    let rdma = master.config(r#""protocol": "rdma""#);
    let bytes = [0u8; 16];
    for (options, told) in [
        (library.options(), "none was given"),
        (
            library.options().region(std::ptr::null(), 16),
            "its pointer is null",
        ),
        (library.options().region(bytes.as_ptr(), 0), "its size is 0"),
    ] {
        let error = store::MooncakeStore::open(&rdma, &options).unwrap_err();
        let told = format!("protocol: \"rdma\" needs a memory region to register, and {told}");
        assert_eq!(error.to_string(), told);
    }
    assert_eq!(library.count("creates"), 0);
    let store = store::MooncakeStore::open(&rdma, &library.options().region(bytes.as_ptr(), 16));
    let store = store.expect("it opens");
    assert!(store.capabilities().needs_registration);
    assert!(
        !library
            .open(&Master::listen().config(""))
            .unwrap()
            .capabilities()
            .needs_registration
    );
}

#[test]
fn a_registration_that_fails_is_fatal_over_rdma_and_a_warning_over_tcp() {
    let Some(library) = StandIn::compile(Kind::Faulty) else {
        return;
    };
    library.set("register_returns", -600);
    for protocol in ["rdma", "tcp"] {
        let master = Master::listen();
        let config = master.config(&format!(r#""protocol": "{protocol}""#));
        let region = Region::allocate(RegionOptions::new(1 << 20)).expect("memory");
        let options = library
            .options()
            .region(region.base().as_ptr(), region.len());
        let store = store::MooncakeStore::open(&config, &options).expect("it opens");
        let calls = library.count("calls");
        let knobs = moonring::EngineConfig::default().max_registration(Some(512 << 10));
        let started = Engine::builder(Arc::new(store))
            .config(knobs)
            .region(region)
            .start();
        match (protocol, started) {
            (
                "rdma",
                Err(StartError::Registration {
                    piece: 1,
                    pieces: 2,
                    error,
                    ..
                }),
            ) => {
                assert!(
                    error.to_string().contains("-600 (INVALID_PARAMS)"),
                    "{error}"
                );
                assert_eq!(library.count("calls"), calls + 1);
            }
            ("tcp", Ok(engine)) => {
                let warnings = &engine.start_report().warnings;
                let told = |w: &&String| w.contains("not registered") && w.contains("-600");
                assert_eq!(warnings.iter().filter(told).count(), 2, "{warnings:?}");
                let ended = engine.shutdown(moonring::Shutdown::Drain, Duration::from_secs(10));
                assert!(ended.expect("in time").not_unregistered.is_empty());
                assert_eq!(
                    library.count("calls"),
                    calls + 2,
                    "what failed is not undone"
                );
            }
            (_, other) => panic!("{protocol}: {other:?}"),
        }
    }
}

#[test]
fn an_engine_serves_from_the_store_that_its_json_names() {
    let Some(library) = StandIn::compile(Kind::Store) else {
        return;
    };
    let master = Master::listen();
    let adapter = L2Adapter::parse(&format!(
        r#"{{"type": "mooncake_store", "local_hostname": "h", "metadata_server": "P2PHANDSHAKE",
             "master_server_addr": "{}", "num_workers": 2, "moonring": {{"setup_timeout": 5, "cores": "none"}}}}"#,
        master.addr()
    ))
    .expect("good JSON");
    let options = OpenOptions::new(&adapter.engine);
    assert_eq!(options.setup_timeout, Duration::from_secs(5));
    let opened =
        store::open_with(&adapter.store, &options.library(&library.path)).expect("it opens");
    let region = Region::allocate(RegionOptions::new(1 << 20)).expect("memory");
    let slots = region
        .slot_pool(&[SlotClass {
            size: 4096,
            count: 8,
        }])
        .expect("slots");
    let engine = Engine::builder(opened.store)
        .config(adapter.engine.clone())
        .region(region)
        .start()
        .expect("it starts");
    assert_eq!(engine.start_report().store, "mooncake_store");
    assert_eq!(
        engine.start_report().store_version.as_deref(),
        Some("stand-in")
    );
    let client = engine.client();
    block_on(async {
        let mut slot = slots.lend(5).expect("a slot");
        slot.copy_from_slice(b"block");
        let stored = client.store("key", slot).await;
        assert_eq!(stored.result, Ok(moonring::StoreOutcome::Accepted));
        let got = client.retrieve("key", slots.lend(9).expect("a slot")).await;
        assert_eq!(got.result, Ok(5));
        assert_eq!(&got.slot.expect("done")[..5], b"block");
        assert_eq!(client.lookup("other").await, Ok(false));
        assert_eq!(
            client.delete("key").await,
            Err(moonring::OpError::Leased.into())
        );
    });
    drop(client);
    engine
        .shutdown(moonring::Shutdown::Drain, Duration::from_secs(10))
        .expect("in time");
    assert_eq!(library.clients(), 0, "closed with the engine");
}

#[test]
fn open_passes_mooncakes_errors_on() {
    let Some(library) = StandIn::compile(Kind::Faulty) else {
        return;
    };
    let adapter = L2Adapter::parse(r#"{"type": "mooncake_store", "local_hostname": "h"}"#)
        .expect("good JSON");
    let opened = store::open_with(&adapter.store, &library.options());
    match opened.map(drop) {
        Err(OpenError::Mooncake(MooncakeError::Config(error))) => {
            assert_eq!(error.field(), "metadata_server")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_region_that_was_not_prefaulted_warns_where_memory_is_registered() {
    for (needs_registration, prefault) in [(true, false), (true, true), (false, false)] {
        let options = store::MemoryOptions {
            needs_registration,
            ..store::MemoryOptions::default()
        };
        let memory = store::MemoryStore::new(options).expect("options");
        let region = RegionOptions::new(4 << 20).prefault(prefault);
        let region = Region::allocate(region).expect("memory");
        let engine = Engine::builder(Arc::new(memory)).region(region).start();
        let report = engine.expect("it starts").start_report().clone();
        let warned = report
            .warnings
            .iter()
            .any(|w| w.contains("region 0 was not prefaulted"));
        assert_eq!(
            warned,
            needs_registration && !prefault,
            "{:?}",
            report.warnings
        );
    }
}
