// Judge runs cases through Kubernetes' own allocator and CEL compiler.
//
// It reads a JSON object with "allocations" and "selectors" from standard input, and writes the
// outcome of each case by its name.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type allocationCase struct {
	Name    string
	Slices  []*resourceapi.ResourceSlice
	Classes []*resourceapi.DeviceClass
	Claims  []*resourceapi.ResourceClaim
	Held    []*resourceapi.ResourceClaim
	Node    *corev1.Node
}

type selectorCase struct {
	Name       string
	Expression string
	Driver     string
	Device     resourceapi.Device
}

type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("found no class %s", name)
}

// features are those of a cluster without feature gates of its own.
var features = structured.Features{
	AdminAccess:            true,
	ConsumableCapacity:     true,
	DeviceBindingAndStatus: true,
	DeviceTaints:           true,
	PartitionableDevices:   true,
	PrioritizedList:        true,
}

var celFeatures = cel.Features{EnableConsumableCapacity: true}

func allocate(ctx context.Context, each allocationCase) any {
	allocator, err := newAllocator(ctx, each)
	if err != nil {
		return map[string]string{"error": err.Error()}
	}
	found, err := allocator.Allocate(ctx, each.Node, each.Claims)
	switch {
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return map[string]string{"node": err.Error()}
	case err != nil:
		return map[string]string{"error": err.Error()}
	case found == nil:
		return map[string]string{"node": ""}
	}
	picks := [][]map[string]any{}
	for _, result := range found {
		devices := []map[string]any{}
		for _, device := range result.Devices.Results {
			pick := map[string]any{"device": device.Device}
			if len(device.ConsumedCapacity) > 0 {
				pick["consumed"] = device.ConsumedCapacity
			}
			if len(device.BindingConditions) > 0 {
				pick["waits"] = device.BindingConditions
			}
			devices = append(devices, pick)
		}
		picks = append(picks, devices)
	}
	selectors := []*corev1.NodeSelector{}
	for _, result := range found {
		selectors = append(selectors, result.NodeSelector)
	}
	return map[string]any{"picks": picks, "nodes": selectors}
}

func sel(ctx context.Context, each selectorCase) any {
	compiler := cel.GetCompiler(celFeatures)
	env := environment.NewExpressions
	created := compiler.CompileCELExpression(each.Expression, cel.Options{EnvType: &env})
	if created.Error != nil {
		return map[string]any{"refused": created.Error.Detail}
	}
	outcome := map[string]any{}
	if created.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
		outcome["costs"] = created.MaxCost
	}
	stored := compiler.CompileCELExpression(each.Expression, cel.Options{DisableCostEstimation: true})
	matches, err := deviceMatches(ctx, stored, each)
	if err != nil {
		outcome["error"] = err.Error()
	} else {
		outcome["matches"] = matches
	}
	return outcome
}

func main() {
	var cases struct {
		Allocations []allocationCase
		Selectors   []selectorCase
	}
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		panic(err)
	}
	ctx := context.Background()
	outcomes := map[string]any{}
	for _, each := range cases.Allocations {
		if each.Node == nil {
			each.Node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
		}
		outcomes[each.Name] = allocate(ctx, each)
	}
	for _, each := range cases.Selectors {
		outcomes[each.Name] = sel(ctx, each)
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", " ")
	if err := out.Encode(outcomes); err != nil {
		panic(err)
	}
}
