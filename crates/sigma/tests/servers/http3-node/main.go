// A node with quic-go's HTTP/3, and with Go's own HTTP/2 and HTTP/1.1 on the TCP port of the same number.
package main

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/quic-go/quic-go/http3"
)

func handler(server *http3.Server) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/proto", func(w http.ResponseWriter, r *http.Request) {
		server.SetQUICHeaders(w.Header())
		fmt.Fprint(w, r.Proto)
	})
	mux.HandleFunc("/sum", func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		count, err := io.Copy(sum, r.Body)
		if err != nil {
			return
		}
		fmt.Fprintf(w, "%d %s", count, hex.EncodeToString(sum.Sum(nil)))
	})
	mux.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) {
		count, _ := strconv.Atoi(r.URL.Query().Get("count"))
		w.Header().Set("Content-Length", strconv.Itoa(count))
		block := make([]byte, 32*1024)
		for i := range block {
			block[i] = 'x'
		}
		for count > 0 {
			n, err := w.Write(block[:min(count, len(block))])
			if err != nil {
				return
			}
			count -= n
		}
	})
	mux.HandleFunc("/trailers", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-End")
		fmt.Fprint(w, "body")
		// A known length would leave no room for trailers over HTTP/1.1.
		w.(http.Flusher).Flush()
		w.Header().Set("X-End", "yes")
	})
	mux.HandleFunc("/early", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, "early")
	})
	mux.HandleFunc("/abort", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "part")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Second)
		fmt.Fprint(w, "slow")
	})
	return mux
}

func main() {
	cert := flag.String("cert", "", "certificate")
	key := flag.String("key", "", "private key")
	flag.Parse()
	pair, err := tls.LoadX509KeyPair(*cert, *key)
	if err != nil {
		log.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	packets, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		log.Fatal(err)
	}
	server := &http3.Server{TLSConfig: http3.ConfigureTLSConfig(config), Port: port}
	server.Handler = handler(server)
	go func() {
		over := &http.Server{Handler: server.Handler, TLSConfig: config}
		log.Fatal(over.ServeTLS(listener, "", ""))
	}()
	fmt.Println(port)
	log.Fatal(server.Serve(packets))
}
