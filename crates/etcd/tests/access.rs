//! Who may use the cluster: users, passwords, rights, and tokens that end.

mod support;

use std::sync::Arc;

use holdtight_core::{Backend, ErrorKind, ExtendBy, Extension, Intent, Release};
use holdtight_etcd::EtcdStore;
use holdtight_testkit::servers::Etcd;
use support::{
    LONG, admin, attempt, base64, busy, connect, extend, granted, key, must_hear, recovers,
    release, secret, subscribe, taken_in_turn,
};

/// Turns authentication on: `root`, `ann` who may use the prefix `holdtight/` and nothing else, and
/// `bob` who may only read there.
async fn lock_down(server: &Etcd) {
    for (user, password) in [("root", "r00t"), ("ann", "p@ss/w:rd"), ("bob", "b0b")] {
        admin(server, "auth/user/add", &format!(r#"{{"name":"{user}","password":"{password}"}}"#))
            .await;
    }
    for role in ["root", "locks", "looks"] {
        admin(server, "auth/role/add", &format!(r#"{{"name":"{role}"}}"#)).await;
    }
    for (role, kind) in [("locks", "READWRITE"), ("looks", "READ")] {
        let right = format!(
            r#"{{"name":"{role}","perm":{{"permType":"{kind}","key":"{}","range_end":"{}"}}}}"#,
            base64(b"holdtight/"),
            base64(b"holdtight0")
        );
        admin(server, "auth/role/grant", &right).await;
    }
    for (user, role) in [("root", "root"), ("ann", "locks"), ("bob", "looks")] {
        admin(server, "auth/user/grant", &format!(r#"{{"user":"{user}","role":"{role}"}}"#)).await;
    }
    admin(server, "auth/enable", "{}").await;
}

fn url(server: &Etcd, user: &str, rest: &str) -> String {
    server.url().replace("etcd://", &format!("etcd://{user}@")) + rest
}

const ANN: &str = "ann:p%40ss%2Fw%3Ard";

on_etcd! {
    async fn a_user_with_the_right_to_the_prefix_does_everything(server: &Etcd) {
        lock_down(server).await;
        let (store, other) = (connect(&url(server, ANN, "")).await, connect(&url(server, ANN, "")).await);
        let (key, me, waiter) = (key("k"), secret(), secret());
        let lease = granted(&store, &key, &me).await;
        let mut bell = subscribe(&other, &key).await;
        busy(&other, &key, &waiter, Intent::Queue).await;
        let extended = extend(&store, &key, &me, ExtendBy::AtLeast(LONG * 2)).await.unwrap();
        assert!(matches!(extended, Extension::Extended(now) if now.fence == lease.fence));
        assert_eq!(Arc::clone(&store).list(String::new(), 10).await.unwrap().len(), 1);
        Arc::clone(&store).probe().await.unwrap();
        Arc::clone(&store).force_release(key.clone(), lease.fence).await.unwrap();
        must_hear(&mut bell, "a release by force").await;
        taken_in_turn(&other, &key, &waiter).await;
    }
}

on_etcd! {
    async fn wrong_or_missing_credentials_are_named_and_never_repeated(server: &Etcd) {
        lock_down(server).await;
        for (wrong, word) in [
            (url(server, "ann:hunter2", ""), "password"),
            (url(server, "eve:hunter2", ""), "password"),
            (server.url(), "asks for a user"),
            (url(server, ANN, "/elsewhere"), "readwrite"),
            (url(server, "bob:b0b", ""), "readwrite"),
        ] {
            let error = EtcdStore::connect(&wrong).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AuthFailed, "{error}");
            let text = format!("{error} {error:?}");
            assert!(text.contains(word) && !text.contains("hunter2") && !text.contains("p@ss"), "{text}");
        }
    }
}

on_etcd! {
    async fn a_token_that_ended_is_replaced(server: &Etcd) {
        lock_down(server).await;
        let store = connect(&url(server, ANN, "")).await;
        let (key, me) = (key("k"), secret());
        let lease = granted(&store, &key, &me).await;
        // A member forgets its tokens when it restarts; our connection is new, and so must the
        // token be.
        server.process().kill();
        server.restart().await;
        recovers(&store).await;
        let extended = extend(&store, &key, &me, ExtendBy::AtLeast(LONG)).await.unwrap();
        assert!(matches!(extended, Extension::Extended(now) if now.fence == lease.fence));
        // A password that is set anew ends the tokens that were given for it, on connections that
        // live on.
        let root = admin(server, "auth/authenticate", r#"{"name":"root","password":"r00t"}"#).await;
        let root = support::field(&root, "token").unwrap().to_owned();
        for _ in 0..3 {
            let same = r#"{"name":"ann","password":"p@ss/w:rd"}"#;
            support::admin_as(server, &root, "auth/user/changepw", same).await;
            let extended = extend(&store, &key, &me, ExtendBy::AtLeast(LONG)).await.unwrap();
            assert!(matches!(extended, Extension::Extended(now) if now.fence == lease.fence));
        }
        assert_eq!(release(&store, &key, &me).await, Release::Released);
    }
}

on_etcd! {
    async fn a_user_in_the_url_of_an_open_cluster_is_let_in(server: &Etcd) {
        let store = connect(&url(server, ANN, "")).await;
        assert!(attempt(&store, &key("k"), &secret(), Intent::Try).await.is_ok());
        assert!(!format!("{store:?}").contains("p@ss"));
    }
}
