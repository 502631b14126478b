package server

import (
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// operation describes one route for openapi.json. TestOpenAPI holds the
// list against the routes that Handler registers.
type operation struct {
	pattern string // as in Handler
	summary string
	who     string // "viewer", "operator", "admin": a token; "node": a client certificate; "": nobody in particular
	query   []param
	in, out any    // zero values of the JSON bodies, nil for none
	media   string // of the answer, "" for JSON
}

type param struct{ name, kind, what string }

// pageParams are those of lists that are had in parts; see the Link header.
var pageParams = []param{{"after", "string", "what comes after the one of this name"}, {"limit", "integer", "at most so many; if more follows, Link says where"}}

var operations = slices.Concat([]operation{
	{"POST " + api.PathEnrol, "Show a TPM and ask to be let in", "", nil, api.EnrolRequest{}, api.EnrolResponse{}, ""},
	{"POST " + api.PathActivate, "Return the secret that only the TPM opens", "", nil, api.ActivateRequest{}, api.ActivateResponse{}, ""},
	{"POST " + api.PathNonce, "Get a nonce for the next quote", "node", nil, nil, api.NonceResponse{}, ""},
	{"POST " + api.PathAttest, "Show a quote and the event log", "node", nil, api.AttestRequest{}, fleet.Verdict{}, ""},
	{"POST " + api.PathHeartbeat, "Report, and learn what is wanted", "node", nil, fleet.Report{}, api.HeartbeatResponse{}, ""},
	{"POST " + api.PathEvents, "Tell what happens", "node", nil, api.EventsRequest{}, nil, ""},
	{"GET " + api.PathImages + "{digest}/manifest", "OCI manifest of an image", "viewer or node", nil, nil, nil, "application/vnd.oci.image.manifest.v1+json"},
	{"GET " + api.PathImages + "{digest}/signature", "Signature of an image", "viewer or node", nil, nil, nil, "application/octet-stream"},
	{"GET " + api.PathImages + "{digest}/blobs/{blob}", "A file of an image, or a range of it", "viewer or node", nil, nil, nil, "application/octet-stream"},

	{"GET " + api.PathVersion, "Which server answers", "viewer", nil, nil, api.Version{}, ""},
	{"GET " + api.PathNodes, "Nodes by name", "viewer", append([]param{{"pool", "string", "of one pool"}, {"state", "string", "in one state"}, {"selector", "string", "whose labels match: gpu=h100,zone!=b,!canary"}}, pageParams...), nil, []fleet.Node{}, ""},
	{"GET " + api.PathNodes + "/{node}", "A node", "viewer", nil, nil, fleet.Node{}, ""},
	{"GET " + api.PathNodes + "/{node}/console", "The end of a node's serial console", "viewer", []param{{"bytes", "integer", "how much, at most 1048576"}}, nil, api.ConsoleLog{}, ""},
	{"GET " + api.PathNodes + "/{node}/timeline", "A node's story in episodes, newest first", "viewer", nil, nil, []api.Episode{}, ""},
	{"POST " + api.PathNodes, "Add a node before it is seen", "operator", nil, api.NodeRequest{}, fleet.Node{}, ""},
	{"DELETE " + api.PathNodes + "/{node}", "Forget a node and its TPM", "operator", nil, nil, nil, ""},
	{"POST " + api.PathNodes + "/{node}/{act}", "approve, cordon, uncordon, unban, revoke or reimage a node, or have it attest now", "operator", nil, api.NodeRequest{}, fleet.Node{}, ""},
	{"POST " + api.PathNodes + "/{node}/cleartpm", "Forget which TPM a node has", "admin", nil, nil, fleet.Node{}, ""},
	{"POST " + api.PathFlip, "Boot the other confirmed slot: all of the nodes or none", "operator", nil, api.FlipRequest{}, []api.Flip{}, ""},
	{"GET " + api.PathPools, "All pools by name", "viewer", nil, nil, []fleet.Pool{}, ""},
	{"PUT " + api.PathPools + "/{pool}", "Make or change a pool; moves no node", "operator", nil, fleet.Pool{}, fleet.Pool{}, ""},
	{"GET " + api.PathImageList, "Published images, newest first", "viewer", nil, nil, []fleet.Image{}, ""},
	{"GET " + api.PathImageList + "/{digest}", "An image with its manifest and files", "viewer", nil, nil, api.ImageDetails{}, ""},
	{"POST " + api.PathImageList, "Publish an image whose blobs were put", "operator", nil, api.PublishRequest{}, fleet.Image{}, ""},
	{"GET " + api.PathMetrics, "How the fleet stands, for Prometheus", "viewer", nil, nil, nil, "text/plain"},
	{"POST " + api.PathImageList + "/{digest}/{act}", "revoke or restore an image", "operator", nil, api.ReasonRequest{}, fleet.Image{}, ""},
	{"POST " + api.PathCollect, "Remove the images that no slot, wish, pool or rollout needs", "operator", nil, api.CollectRequest{}, []api.Collected{}, ""},
	{"GET " + api.PathBlobs + "{digest}", "Is the blob here? (HEAD will do)", "viewer", nil, nil, nil, ""},
	{"PUT " + api.PathBlobs + "{digest}", "Upload a blob, checked against its digest", "operator", nil, nil, nil, ""},
	{"GET " + api.PathRollouts, "Rollouts, oldest first", "viewer", append([]param{{"summary", "string", "1: counts by stage (RolloutSummary) in place of nodes"}, {"state", "string", "in one state"}, {"selector", "string", "whose labels match: gpu=h100,zone!=b,!canary"}}, pageParams...), nil, []fleet.Rollout{}, ""},
	{"GET " + api.PathRollouts + "/{id}", "A rollout", "viewer", nil, nil, fleet.Rollout{}, ""},
	{"POST " + api.PathRollouts, "Start a rollout; with dryRun say what it would be", "operator", nil, api.RolloutRequest{}, fleet.Rollout{}, ""},
	{"POST " + api.PathRollouts + "/{id}/{act}", "pause, resume, abort or undo a rollout", "operator", nil, api.ReasonRequest{}, fleet.Rollout{}, ""},
	{"GET " + api.PathEventList, "Events by rising ID", "viewer", []param{
		{"after", "integer", "only those with a higher ID"}, {"node", "string", "of one node"}, {"kind", "string", "whose kind begins so"},
		{"limit", "integer", "at most so many, 0 means 1000"}, {"last", "string", "1: the newest ones"}, {"wait", "integer", "seconds to wait for one if there is none, at most 55"},
	}, nil, []fleet.Event{}, ""},
	{"GET " + api.PathWatch, "Server-sent events: hello (Hello), rows (Rows), events ([]Event)", "viewer", []param{
		{"rows", "string", "1: the fleet too, whole and then what changes"}, {"after", "integer", "events with a higher ID; 0: new ones only"},
	}, nil, nil, "text/event-stream"},
	{"GET " + api.PathBaselines, "What the firmware of models was seen to measure", "viewer", nil, nil, []fleet.Baseline{}, ""},
	{"POST " + api.PathBaselines, "Approve firmware that no node has shown yet", "operator", nil, api.AnnounceRequest{}, fleet.Baseline{}, ""},
	{"POST " + api.PathBaselines + "/{id}/approve", "Let nodes of a model show what was seen", "operator", nil, nil, fleet.Baseline{}, ""},
	{"DELETE " + api.PathBaselines + "/{id}", "Forget a baseline", "operator", nil, nil, nil, ""},
	{"GET " + api.PathOpenAPI, "This document", "", nil, nil, nil, "application/json"},
}, recoveryOperations, bootOperations)

// alsoShown are types that no operation's body names.
var alsoShown = []any{api.Problem{}, api.Hello{}, api.Rows{}, api.RolloutSummary{}}

func (s *Server) openAPI(_ http.ResponseWriter, _ *http.Request) (any, error) {
	return describe(s.Version), nil
}

type object = map[string]any

// describe makes the OpenAPI 3.1.0 document (https://spec.openapis.org/oas/v3.1.0).
func describe(version string) object {
	sc := schemas{}
	for _, v := range alsoShown {
		sc.of(reflect.TypeOf(v))
	}
	paths := object{}
	for _, o := range operations {
		method, path, _ := strings.Cut(o.pattern, " ")
		p, _ := paths[path].(object)
		if p == nil {
			p = object{}
			paths[path] = p
		}
		p[strings.ToLower(method)] = o.describe(sc, method, path)
	}
	return object{
		"openapi": "3.1.0",
		"info": object{"title": "Turnout", "version": version, "license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "Node API (mutual TLS) and operator API (bearer token, or a session of the web console) of pxeserver."},
		"paths": paths,
		"components": object{
			"schemas": object(sc),
			"securitySchemes": object{
				"token":   object{"type": "http", "scheme": "bearer", "description": "an operator's token; its role is viewer, operator or admin"},
				"session": object{"type": "apiKey", "in": "cookie", "name": "__Host-turnout-session", "description": "of the web console; what changes something also needs X-Turnout-Csrf"},
				"node":    object{"type": "mutualTLS", "description": "the certificate that enrolment gave"},
			},
		},
	}
}

func (o operation) describe(sc schemas, method, path string) object {
	out := object{"summary": o.summary, "operationId": operationID(method, path), "responses": object{
		"default": object{"description": "refused: what, and what to do next", "content": object{"application/problem+json": object{"schema": ref("Problem")}}},
	}}
	var params []object
	for part := range strings.SplitSeq(path, "/") {
		if strings.HasPrefix(part, "{") {
			params = append(params, object{"name": strings.Trim(part, "{}"), "in": "path", "required": true, "schema": object{"type": "string"}})
		}
	}
	for _, q := range o.query {
		params = append(params, object{"name": q.name, "in": "query", "description": q.what, "schema": object{"type": q.kind}})
	}
	if params != nil {
		out["parameters"] = params
	}
	if o.in != nil {
		out["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": sc.of(reflect.TypeOf(o.in))}}}
	}
	answer := object{"description": "done"}
	status := "204"
	switch {
	case o.out != nil:
		status, answer["content"] = "200", object{"application/json": object{"schema": sc.of(reflect.TypeOf(o.out))}}
	case o.media != "":
		status, answer["content"] = "200", object{o.media: object{}}
	}
	out["responses"].(object)[status] = answer
	out["security"], out["tags"] = securityOf(o.who), []string{tagOf(path)}
	if o.who != "" {
		out["description"] = "Who may: " + o.who + "."
	}
	return out
}

func securityOf(who string) []object {
	operator := []object{{"token": []string{}}, {"session": []string{}}}
	node := []object{{"node": []string{}}}
	switch who {
	case "":
		return []object{}
	case "node":
		return node
	case "viewer or node":
		return append(operator, node...)
	}
	return operator
}

func tagOf(path string) string {
	if strings.HasPrefix(path, "/v1/node/") {
		return "node API"
	}
	return "operator API"
}

// operationID makes "postNodesNodeAct" of POST /v1/nodes/{node}/{act}.
func operationID(method, path string) string {
	id := strings.ToLower(method)
	for w := range strings.FieldsFuncSeq(strings.TrimPrefix(path, "/v1"), func(r rune) bool { return strings.ContainsRune("/{}.", r) }) {
		id += strings.ToUpper(w[:1]) + w[1:]
	}
	return id
}
