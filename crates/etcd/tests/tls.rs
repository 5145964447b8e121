//! TLS: the certificate and its name are checked, and ours is shown where the server asks for it.
//!
//! A small proxy speaks TLS in front of a real etcd, so that the test decides about every
//! certificate.

mod support;

use std::path::PathBuf;
use std::sync::Arc;

use holdtight_core::{ErrorKind, ExtendBy, Extension, Intent, Release};
use holdtight_etcd::EtcdStore;
use holdtight_testkit::servers::Etcd;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use support::{LONG, busy, connect, extend, granted, key, release, secret};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// Somebody who signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A certificate for `name`, and its key.
    fn certify(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap(), key)
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(self.0.der().to_vec())).unwrap();
        roots
    }

    /// Its own certificate, in a file beside the server's data.
    fn file(&self, server: &Etcd, name: &str) -> String {
        file(server, name, &self.0.pem())
    }
}

fn file(server: &Etcd, name: &str, text: &str) -> String {
    let path: PathBuf = server.process().directory().path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Speaks TLS in front of `server`; asks clients for a certificate of `clients`, if there is one.
/// Its port.
async fn secured(
    server: &Etcd,
    authority: &Authority,
    name: &str,
    clients: Option<&Authority>,
) -> u16 {
    let (certificate, key) = authority.certify(name);
    let chain = vec![certificate.der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let builder = ServerConfig::builder();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => builder.with_client_cert_verifier(
            WebPkiClientVerifier::builder(Arc::new(clients.roots())).build().unwrap(),
        ),
    };
    let mut config = builder.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, plain) = (listener.local_addr().unwrap().port(), server.port());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut client) = acceptor.accept(client).await else { return };
                let Ok(mut server) = TcpStream::connect(("127.0.0.1", plain)).await else { return };
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    port
}

on_etcd! {
    async fn a_trusted_certificate_is_let_in_and_every_other_refused(server: &Etcd) {
        let (trusted, stranger) = (Authority::new(), Authority::new());
        let ca = trusted.file(server, "ca.pem");
        let port = secured(server, &trusted, "localhost", None).await;
        let store = connect(&format!("etcds://localhost:{port}?tls_ca={ca}")).await;
        let (key, me) = (key("k"), secret());
        granted(&store, &key, &me).await;
        busy(&store, &key, &secret(), Intent::Queue).await;
        let extended = extend(&store, &key, &me, ExtendBy::AtLeast(LONG * 2)).await.unwrap();
        assert!(matches!(extended, Extension::Extended(_)));
        assert_eq!(release(&store, &key, &me).await, Release::Released);

        let other = stranger.file(server, "other.pem");
        let elsewhere = secured(server, &trusted, "etcd.example", None).await;
        for refused in [
            format!("etcds://localhost:{port}?tls_ca={other}"),
            format!("etcds://localhost:{port}"),
            format!("etcds://localhost:{elsewhere}?tls_ca={ca}"),
            format!("etcd://localhost:{port}"),
        ] {
            let error = EtcdStore::connect(&refused).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{refused}: {error}");
        }
        // The certificate's name may be said where the address is another.
        let named = format!("etcds://localhost:{elsewhere}?tls_ca={ca}&tls_name=etcd.example");
        EtcdStore::connect(&named).await.unwrap();
        let missing = EtcdStore::connect("etcds://localhost:1?tls_ca=/no/such/file").await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::InvalidConfig, "{missing}");
    }
}

on_etcd! {
    async fn a_server_that_asks_for_our_certificate_gets_it(server: &Etcd) {
        let (ours, theirs) = (Authority::new(), Authority::new());
        let ca = theirs.file(server, "ca.pem");
        let (certificate, key) = ours.certify("client");
        let cert = file(server, "client.pem", &certificate.pem());
        let key = file(server, "client.key", &key.serialize_pem());
        let port = secured(server, &theirs, "localhost", Some(&ours)).await;
        let url = format!("etcds://localhost:{port}?tls_ca={ca}");
        let error = EtcdStore::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let store = connect(&format!("{url}&tls_cert={cert}&tls_key={key}")).await;
        granted(&store, &support::key("k"), &secret()).await;
    }
}
