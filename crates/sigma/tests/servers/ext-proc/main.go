// A processor of Envoy's ext_proc with the types of go-control-plane: fields are set, bodies come back in capitals.
//
// The first argument is the address. The second, if there is one, is a file that gets a line for each stream: the field
// x-case of the request, then the messages. Bodies that follow each other are one item.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	ext_proc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const duplex = filter.ProcessingMode_FULL_DUPLEX_STREAMED

type server struct {
	ext_proc.UnimplementedExternalProcessorServer
	lock sync.Mutex
	log  *os.File
}

// body is the part of a stream about one body.
type body struct {
	mode   filter.ProcessingMode_BodySendMode
	pieces int
	bytes  int
	ended  bool
}

// stream is one exchange.
type stream struct {
	name              string
	messages          []string
	request, response body
}

func set(key, value string) *ext_proc.HeaderMutation {
	header := &core.HeaderValue{Key: key, RawValue: []byte(value)}
	return &ext_proc.HeaderMutation{SetHeaders: []*core.HeaderValueOption{{Header: header}}}
}

// note adds a message to the list.
func (s *stream) note(kind string) {
	s.messages = append(s.messages, kind)
}

// take handles a piece of a body. The last one gets a mark of its own, so the length changes.
func (s *stream) take(kind string, part *body, piece *ext_proc.HttpBody) *ext_proc.BodyResponse {
	part.pieces++
	part.bytes += len(piece.GetBody())
	part.ended = piece.GetEndOfStream()
	item := fmt.Sprintf("%s(%d,%t)", kind, part.bytes, part.ended)
	if part.pieces > 1 && strings.HasPrefix(s.messages[len(s.messages)-1], kind) {
		s.messages[len(s.messages)-1] = item
	} else {
		s.note(item)
	}
	upper := bytes.ToUpper(piece.GetBody())
	if part.ended {
		upper = append(upper, '!')
	}
	mutation := &ext_proc.BodyMutation{Mutation: &ext_proc.BodyMutation_Body{Body: upper}}
	response := &ext_proc.CommonResponse{BodyMutation: mutation}
	switch {
	case part.mode == duplex:
		streamed := &ext_proc.StreamedBodyResponse{Body: upper, EndOfStream: part.ended}
		mutation.Mutation = &ext_proc.BodyMutation_StreamedResponse{StreamedResponse: streamed}
	case part.ended && part.pieces == 1:
		response.HeaderMutation = set("content-length", strconv.Itoa(len(upper)))
	}
	return &ext_proc.BodyResponse{Response: response}
}

// began handles the head of a request. The field x-do says what happens.
func (s *stream) began(headers *ext_proc.HttpHeaders) (*ext_proc.ProcessingResponse, error) {
	do := ""
	for _, header := range headers.GetHeaders().GetHeaders() {
		switch header.GetKey() {
		case "x-case":
			s.name = string(header.GetRawValue())
		case "x-do":
			do = string(header.GetRawValue())
		}
	}
	common := &ext_proc.CommonResponse{HeaderMutation: set("x-new", "1")}
	common.HeaderMutation.RemoveHeaders = []string{"x-drop"}
	response := &ext_proc.ProcessingResponse{}
	response.Response = &ext_proc.ProcessingResponse_RequestHeaders{
		RequestHeaders: &ext_proc.HeadersResponse{Response: common},
	}
	switch do {
	case "refuse":
		immediate := &ext_proc.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode_Forbidden},
			Headers: set("x-why", "asked"),
			Body:    []byte("refused"),
		}
		response.Response = &ext_proc.ProcessingResponse_ImmediateResponse{ImmediateResponse: immediate}
	case "fail":
		return nil, status.Error(codes.Internal, "asked")
	case "end":
		return nil, io.EOF
	case "wrong":
		response.Response = &ext_proc.ProcessingResponse_ResponseHeaders{
			ResponseHeaders: &ext_proc.HeadersResponse{},
		}
	case "empty":
		response.Response = nil
	case "slow":
		time.Sleep(20 * time.Second)
	case "path":
		common.HeaderMutation = set(":path", "/none/other")
	case "host":
		common.HeaderMutation = set("host", "other")
	case "invalid":
		common.HeaderMutation = set("x-a", "a\nb")
	case "replace":
		common.Status = ext_proc.CommonResponse_CONTINUE_AND_REPLACE
		mutation := &ext_proc.BodyMutation_Body{Body: []byte("replaced")}
		common.BodyMutation = &ext_proc.BodyMutation{Mutation: mutation}
	case "override":
		s.request.mode = filter.ProcessingMode_BUFFERED
		response.ModeOverride = &filter.ProcessingMode{
			RequestBodyMode:    filter.ProcessingMode_BUFFERED,
			ResponseHeaderMode: filter.ProcessingMode_SKIP,
		}
	}
	return response, nil
}

func (s *stream) answer(request *ext_proc.ProcessingRequest) (*ext_proc.ProcessingResponse, error) {
	if config := request.GetProtocolConfig(); config != nil {
		s.request.mode, s.response.mode = config.GetRequestBodyMode(), config.GetResponseBodyMode()
	}
	response := &ext_proc.ProcessingResponse{}
	switch part := request.GetRequest().(type) {
	case *ext_proc.ProcessingRequest_RequestHeaders:
		s.note(fmt.Sprintf("request-head(%t)", part.RequestHeaders.GetEndOfStream()))
		return s.began(part.RequestHeaders)
	case *ext_proc.ProcessingRequest_ResponseHeaders:
		s.note(fmt.Sprintf("response-head(%t)", part.ResponseHeaders.GetEndOfStream()))
		common := &ext_proc.CommonResponse{HeaderMutation: set("x-back", "2")}
		common.HeaderMutation.RemoveHeaders = []string{"x-origin"}
		headers := &ext_proc.HeadersResponse{Response: common}
		response.Response = &ext_proc.ProcessingResponse_ResponseHeaders{ResponseHeaders: headers}
	case *ext_proc.ProcessingRequest_RequestBody:
		body := s.take("request-body", &s.request, part.RequestBody)
		response.Response = &ext_proc.ProcessingResponse_RequestBody{RequestBody: body}
	case *ext_proc.ProcessingRequest_ResponseBody:
		body := s.take("response-body", &s.response, part.ResponseBody)
		response.Response = &ext_proc.ProcessingResponse_ResponseBody{ResponseBody: body}
	case *ext_proc.ProcessingRequest_RequestTrailers:
		s.note("request-trailers")
		trailers := &ext_proc.TrailersResponse{HeaderMutation: set("x-end", "3")}
		response.Response = &ext_proc.ProcessingResponse_RequestTrailers{RequestTrailers: trailers}
	case *ext_proc.ProcessingRequest_ResponseTrailers:
		s.note("response-trailers")
		trailers := &ext_proc.TrailersResponse{HeaderMutation: set("x-end", "4")}
		response.Response = &ext_proc.ProcessingResponse_ResponseTrailers{ResponseTrailers: trailers}
	}
	return response, nil
}

func (s *server) Process(calls ext_proc.ExternalProcessor_ProcessServer) error {
	exchange := &stream{}
	defer func() {
		if s.log == nil {
			return
		}
		s.lock.Lock()
		defer s.lock.Unlock()
		fmt.Fprintln(s.log, exchange.name, strings.Join(exchange.messages, " "))
	}()
	for {
		request, err := calls.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		response, err := exchange.answer(request)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := calls.Send(response); err != nil {
			return err
		}
	}
}

func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	processor := &server{}
	if len(os.Args) > 2 {
		if processor.log, err = os.Create(os.Args[2]); err != nil {
			log.Fatal(err)
		}
	}
	calls := grpc.NewServer()
	ext_proc.RegisterExternalProcessorServer(calls, processor)
	log.Fatal(calls.Serve(listener))
}
