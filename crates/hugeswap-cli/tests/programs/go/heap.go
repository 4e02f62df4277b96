// A heap of linked values, made by four goroutines, read at random and checked; a child; and the name of this executable.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
)

const golden = 0x9e3779b97f4a7c15

type node struct {
	key    uint64
	values [14]uint64
}

func part(first, n int) map[uint64]*node {
	all := map[uint64]*node{}
	for i := first; i < n; i += 4 {
		one := &node{key: uint64(i) * golden}
		for j := range one.values {
			one.values[j] = one.key + uint64(j)
		}
		all[one.key] = one
	}
	return all
}

func main() {
	n, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	var wait sync.WaitGroup
	parts := make([]map[uint64]*node, 4)
	for t := range parts {
		wait.Add(1)
		go func() {
			defer wait.Done()
			parts[t] = part(t, n)
		}()
	}
	wait.Wait()
	sum := uint64(0)
	for i := 0; i < n; i++ {
		one := parts[i%4][uint64(i)*golden]
		for j, value := range one.values {
			if value != one.key+uint64(j) {
				panic("a wrong value")
			}
			sum += value ^ uint64(i)
		}
	}
	child, err := exec.Command("echo", "child").Output()
	self, selfErr := os.Executable()
	fmt.Println(n, sum, string(child), err, filepath.Base(self), selfErr)
}
